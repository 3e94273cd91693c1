// llama.cpp, or its fork ik_llama.cpp (-DIK_LLAMA), one llama_decode at a time, without the time of sampling.
//
//   llama-steps MODEL.gguf THREADS CONTEXT SEQUENCES    answers requests until its input ends
//   llama-steps quantize IN.gguf OUT.gguf FILE_TYPE     writes a file of another type (llama.h, enum llama_ftype)
//   llama-steps logits MODEL.gguf THREADS CONTEXT       answers texts of at most CONTEXT tokens until its input ends
//
// A request is a line of numbers: the tokens to generate, the number of prompts, and for each its length and its token
// ids. The answer is a line for each step with the clock's seconds, as Python's time.perf_counter gives them. The first
// line, VERSION, is written when the model is loaded.
//
// A text is a line of token ids. The answer is the logits after each of them: float32 [tokens, vocabulary], raw.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "llama.h"

namespace {

constexpr int kBatch = 2048;  // most tokens of one llama_decode

struct Row {
  llama_token token;
  llama_pos position;
  llama_seq_id sequence;
  bool wanted;  // its logits are computed
};

[[noreturn]] void fail(const std::string& text) {
  std::cerr << text << "\n";
  std::exit(1);
}

class Model {
 public:
  Model(const char* path, int threads, int context, int sequences) : batch_(llama_batch_init(kBatch, 0, 1)) {
    model_ = llama_model_load_from_file(path, llama_model_default_params());
    if (!model_) fail(std::string(path) + " was not loaded");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(context);
    params.n_batch = kBatch;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = static_cast<decltype(params.n_threads)>(threads);
#ifndef IK_LLAMA
    params.kv_unified = true;
#endif
    context_ = llama_init_from_model(model_, params);
    if (!context_) fail("no context");
  }

  void clear() {
#ifdef IK_LLAMA
    llama_kv_cache_clear(context_);
#else
    llama_memory_clear(llama_get_memory(context_), true);
#endif
  }

  void decode(const std::vector<Row>& rows) {
    for (size_t first = 0; first < rows.size(); first += kBatch) {
      batch_.n_tokens = 0;
      for (size_t i = first; i < rows.size() && batch_.n_tokens < kBatch; ++i) {
        const int at = batch_.n_tokens++;
        batch_.token[at] = rows[i].token;
        batch_.pos[at] = rows[i].position;
        batch_.n_seq_id[at] = 1;
        batch_.seq_id[at][0] = rows[i].sequence;
        batch_.logits[at] = rows[i].wanted;
      }
      if (const int status = llama_decode(context_, batch_)) fail("llama_decode: " + std::to_string(status));
    }
    llama_synchronize(context_);
  }

  // Logits of the first `rows` rows of the last batch that wanted them: float32 [rows, vocabulary].
  void write_logits(size_t rows) {
    const auto vocabulary = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
    std::fwrite(llama_get_logits(context_), sizeof(float), rows * vocabulary, stdout);
  }

 private:
  llama_batch batch_;
  llama_model* model_;
  llama_context* context_;
};

void timed(Model& model, const std::vector<Row>& rows) {
  model.decode(rows);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%.9f\n", std::chrono::duration<double>(now).count());
}

void answer(Model& model, std::istream& request) {
  size_t tokens, count;
  request >> tokens >> count;
  std::vector<std::vector<llama_token>> prompts(count);
  for (std::vector<llama_token>& prompt : prompts) {
    size_t length;
    request >> length;
    prompt.resize(length);
    for (llama_token& token : prompt) request >> token;
  }
  model.clear();
  std::vector<Row> rows;
  for (size_t s = 0; s < count; ++s)
    for (size_t i = 0; i < prompts[s].size(); ++i)
      rows.push_back(
          {prompts[s][i], static_cast<llama_pos>(i), static_cast<llama_seq_id>(s), i + 1 == prompts[s].size()});
  timed(model, rows);
  for (size_t step = 0; step + 1 < tokens; ++step) {
    rows.clear();
    for (size_t s = 0; s < count; ++s) {
      const std::vector<llama_token>& prompt = prompts[s];
      const auto position = static_cast<llama_pos>(prompt.size() + step);
      rows.push_back({prompt[step % prompt.size()], position, static_cast<llama_seq_id>(s), true});
    }
    timed(model, rows);
  }
  std::fflush(stdout);
}

void predict(Model& model, std::istream& text) {
  std::vector<Row> rows;
  for (llama_token token; text >> token;) rows.push_back({token, static_cast<llama_pos>(rows.size()), 0, true});
  model.clear();
  model.decode(rows);
  model.write_logits(rows.size());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) fail("llama-steps: four arguments, as the first lines of llama_steps.cpp say");
  llama_backend_init();
  if (std::string(words[1]) == "quantize") {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = static_cast<llama_ftype>(std::atoi(words[4]));
    return static_cast<int>(llama_model_quantize(words[2], words[3], &params));
  }
  const bool logits = std::string(words[1]) == "logits";
  char** const given = words + (logits ? 2 : 1);
  Model model(given[0], std::atoi(given[1]), std::atoi(given[2]), logits ? 1 : std::atoi(given[3]));
  std::cout << VERSION << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream request(line);
    logits ? predict(model, request) : answer(model, request);
  }
}
