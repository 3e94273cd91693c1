// System calls that fail when a test says so: LD_PRELOAD for a server's processes.
//
// The file that FAILING_CALLS names is a `struct order`, which the test writes and all processes map: the next `left` calls of
// kind `call` fail with `error` (0: they do half of what they were asked) in the process `pid` (0: in any).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { NONE, OPEN, READ, WRITE, GROW, SYNC, ACCEPT, SOCKET, PIPE, FORK, SEND, ALLOCATE };

struct order {
  _Atomic int call, error, left, pid, failed;
};

static struct order* order;

__attribute__((constructor)) static void map_order(void) {
  const char* path = getenv("FAILING_CALLS");
  const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* mapped = mmap(NULL, sizeof(struct order), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) order = mapped;
}

// Whether this call is to fail; then it counts as one of those ordered.
static int fails(enum call call) {
  if (!order || atomic_load(&order->call) != (int)call) return 0;
  const int pid = atomic_load(&order->pid);
  if (pid && pid != getpid()) return 0;
  if (atomic_fetch_sub(&order->left, 1) <= 0) {
    atomic_store(&order->left, 0);
    return 0;
  }
  errno = atomic_load(&order->error);
  atomic_fetch_add(&order->failed, 1);  // from then on the test may order something else
  return 1;
}

static int is_file(int fd) {
  struct stat found;
  const int before = errno;
  const int is = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
  errno = before;
  return is;
}

static int is_socket(int fd) {
  struct stat found;
  const int before = errno;
  const int is = fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
  errno = before;
  return is;
}

// The next definition of a function, found once.
#define REAL(name) \
  static __typeof__(name)* real; \
  if (!real) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

// An ordered failure of a call that transfers `size` bytes: -1, or with error 0 a shorter transfer.
#define SHORTEN(size) \
  if (errno) return -1; \
  size = size > 1 ? size / 2 : size

#define OPENS(name, at_parameter, at_argument) \
  int name(at_parameter const char* path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    if (fails(OPEN)) return -1; \
    return real(at_argument path, flags, mode); \
  }
#define COMMA ,
OPENS(open, , )
OPENS(open64, , )
OPENS(openat, int folder COMMA, folder COMMA)
OPENS(openat64, int folder COMMA, folder COMMA)

ssize_t read(int fd, void* to, size_t size) {
  REAL(read);
  if (is_file(fd) && fails(READ)) {
    SHORTEN(size);
  }
  return real(fd, to, size);
}

ssize_t write(int fd, const void* from, size_t size) {
  REAL(write);
  if ((is_file(fd) && fails(WRITE)) || (is_socket(fd) && fails(SEND))) {
    SHORTEN(size);
  }
  return real(fd, from, size);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  REAL(writev);
  if (is_file(fd) && fails(WRITE) && errno) return -1;
  return real(fd, parts, count);
}

#define WRITES_AT(name, offset_type) \
  ssize_t name(int fd, const void* from, size_t size, offset_type offset) { \
    REAL(name); \
    if (fails(WRITE)) { \
      SHORTEN(size); \
    } \
    return real(fd, from, size, offset); \
  }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)

#define GROWS(name, offset_type) \
  int name(int fd, offset_type size) { \
    REAL(name); \
    return fails(GROW) ? -1 : real(fd, size); \
  }
GROWS(ftruncate, off_t)
GROWS(ftruncate64, off64_t)

#define ALLOCATES_FILE(name, offset_type) \
  int name(int fd, offset_type offset, offset_type size) { \
    REAL(name); \
    return fails(GROW) ? errno : real(fd, offset, size); \
  }
ALLOCATES_FILE(posix_fallocate, off_t)
ALLOCATES_FILE(posix_fallocate64, off64_t)

#define SYNCS(name) \
  int name(int fd) { \
    REAL(name); \
    return fails(SYNC) ? -1 : real(fd); \
  }
SYNCS(fsync)
SYNCS(fdatasync)

int accept4(int fd, struct sockaddr* address, socklen_t* size, int flags) {
  REAL(accept4);
  return fails(ACCEPT) ? -1 : real(fd, address, size, flags);
}

int accept(int fd, struct sockaddr* address, socklen_t* size) {
  REAL(accept);
  return fails(ACCEPT) ? -1 : real(fd, address, size);
}

int socket(int domain, int type, int protocol) {
  REAL(socket);
  return fails(SOCKET) ? -1 : real(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int pair[2]) {
  REAL(socketpair);
  return fails(SOCKET) ? -1 : real(domain, type, protocol, pair);
}

int pipe2(int ends[2], int flags) {
  REAL(pipe2);
  return fails(PIPE) ? -1 : real(ends, flags);
}

pid_t fork(void) {
  REAL(fork);
  return fails(FORK) ? -1 : real();
}

ssize_t send(int fd, const void* from, size_t size, int flags) {
  REAL(send);
  if (fails(SEND)) {
    SHORTEN(size);
  }
  return real(fd, from, size, flags);
}

// Of memory, large pieces alone: for small ones Rust and CPython end their process, whatever the server does.
enum { LARGE = 256 << 10 };
extern void* __libc_malloc(size_t);
extern void* __libc_realloc(void*, size_t);

void* malloc(size_t size) { return size >= LARGE && fails(ALLOCATE) ? NULL : __libc_malloc(size); }
void* realloc(void* old, size_t size) { return size >= LARGE && fails(ALLOCATE) ? NULL : __libc_realloc(old, size); }
