// A TCG plugin for qemu 7.2: the instructions a program executes between its marks.
//
//   gcc -O2 -shared -fPIC plugin.c -o plugin.so
//   qemu-aarch64 -plugin plugin.so,out=FILE PROGRAM
//
// A mark is the system call getsid(-LABEL), which does nothing else. FILE gets a line a mark: the label, all
// instructions so far, and those of them that multiply vectors. Whole translation blocks are counted, exactly, except
// where one is left by a signal. One thread: the counters are not atomic.
//
// The plugin interface is declared here in so far as it is used, from qemu's documentation of it
// (docs/devel/tcg-plugins): Debian packages no header.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t qemu_plugin_id_t;
typedef void (*block_translated)(qemu_plugin_id_t, void* block);
typedef void (*system_called)(qemu_plugin_id_t, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                              uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);
enum { ADD_U64 = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, block_translated);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, system_called);
void qemu_plugin_register_vcpu_tb_exec_inline(void* block, int operation, void* counter, uint64_t amount);
size_t qemu_plugin_tb_n_insns(const void* block);
void* qemu_plugin_tb_get_insn(const void* block, size_t index);
const void* qemu_plugin_insn_data(const void* instruction);

EXPORT int qemu_plugin_version = 1;

enum { GETSID = 156 };  // aarch64's number of the system call
static uint64_t executed, multiplied;
static FILE* out;

// Encodings from the Arm Architecture Reference Manual (DDI 0487), C7.2 and C8.2: multiply-adds of vectors, and the dot
// products and matrix multiplications among them.
static const struct {
  uint32_t mask, value;
} kMultiplies[] = {
    {0xBFA0FC00, 0x0E20CC00}, {0xBF80F400, 0x0F801000},  // FMLA, by vector and by element
    {0xBFE0FC00, 0x0E400C00}, {0xBFC0F400, 0x0F001000},  // FMLA of halves
    {0xBFE0FC00, 0x0E809400}, {0xBFC0F400, 0x0F80E000},  // SDOT
    {0xFFE0FC00, 0x4E80A400},                            // SMMLA
    {0xFFE0FC00, 0x6E40EC00}, {0xBFE0FC00, 0x2E40FC00},  // BFMMLA, BFDOT
    {0xFF20E000, 0x65200000},                            // SVE FMLA
    {0xFFE0FC00, 0x44800000}, {0xFFE0FC00, 0x44A00000},  // SVE SDOT, and by element
    {0xFFE0FC00, 0x45009800}, {0xFFE0FC00, 0x6460E400},  // SVE SMMLA, BFMMLA
};

static int multiplies(uint32_t code) {
  for (size_t i = 0; i < sizeof kMultiplies / sizeof *kMultiplies; ++i)
    if ((code & kMultiplies[i].mask) == kMultiplies[i].value) return 1;
  return 0;
}

static void on_block(qemu_plugin_id_t id, void* block) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(block);
  uint64_t products = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t code;
    memcpy(&code, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i)), sizeof code);
    products += (uint64_t)multiplies(code);
  }
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &executed, count);
  if (products) qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &multiplied, products);
}

static void on_call(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                    uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)id, (void)cpu, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  const int32_t label = -(int32_t)a1;
  if (number != GETSID || label <= 0) return;
  fprintf(out, "%d %" PRIu64 " %" PRIu64 "\n", label, executed, multiplied);
  fflush(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int argc, char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || !(out = fopen(argv[0] + 4, "w"))) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  return 0;
}
