// llama.cpp between the marks: a prompt, then one token after it.
//
//   llama_count FILE.gguf PROMPT_TOKENS
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"
#include "marks.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int prompt = std::atoi(argv[2]);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = 1;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return 1;

  std::vector<llama_token> tokens;
  for (int i = 0; i <= prompt; ++i) tokens.push_back(300 + i * 31);
  const auto decode = [&](int first, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens.data() + first, count)) != 0) std::exit(1);
    llama_synchronize(context);
  };
  decode(0, 1);  // pages are touched
  llama_memory_clear(llama_get_memory(context), true);
  mark(Mark::before_prefill);
  decode(0, prompt);
  mark(Mark::after_prefill);
  decode(prompt, 1);
  mark(Mark::after_decode);
  std::printf("%g\n", static_cast<double>(llama_get_logits(context)[0]));
}
