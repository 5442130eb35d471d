// Preloaded (LD_PRELOAD), this library counts the calls of some functions of libc from the start of
// main to its end, and fails one of them.
//
//   MINFER_FAULT=write:3:28    the third write or pwrite fails with errno 28; "write:3:28+" fails
//                              all later ones too; "write:3:-9" raises signal 9 in its place
//   MINFER_FAULT_COUNTS=FILE   "write 17" for each function goes to FILE at the end of main
//
// Calls that libc makes within itself are not seen. Writes to stderr never fail: they are how a
// test sees what happened.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>

namespace {

enum Function {
  kOpen,
  kRead,
  kWrite,
  kFsync,
  kClose,
  kFlock,
  kRename,
  kMkdir,
  kUnlink,
  kMmap,
  kThread,
  kMalloc,
  kFunctions
};
constexpr const char* kNames[kFunctions] = {"open",   "read",  "write",  "fsync",
                                            "close",  "flock", "rename", "mkdir",
                                            "unlink", "mmap",  "thread", "malloc"};

std::atomic<bool> armed{false};
std::atomic<long> counts[kFunctions];
int failing = -1, failure = 0;
long failing_call = 0;
bool lasting = false;

// Counts a call; true, with errno set, where it is one that fails.
bool fails(Function function) {
  if (!armed.load(std::memory_order_relaxed)) return false;
  const long call = ++counts[function];
  if (function != failing || (lasting ? call < failing_call : call != failing_call)) return false;
  if (failure < 0) raise(-failure);
  errno = failure;
  return true;
}

void read_settings() {
  const char* text = getenv("MINFER_FAULT");
  if (text == nullptr) return;
  for (int function = 0; function < kFunctions; ++function) {
    const size_t length = strlen(kNames[function]);
    if (strncmp(text, kNames[function], length) != 0 || text[length] != ':') continue;
    char* rest = nullptr;
    failing = function;
    failing_call = strtol(text + length + 1, &rest, 10);
    failure = *rest == ':' ? int(strtol(rest + 1, &rest, 10)) : EIO;
    lasting = *rest == '+';
  }
}

void write_counts() {
  const char* path = getenv("MINFER_FAULT_COUNTS");
  FILE* file = path == nullptr ? nullptr : fopen(path, "w");
  if (file == nullptr) return;
  for (int i = 0; i < kFunctions; ++i) fprintf(file, "%s %ld\n", kNames[i], counts[i].load());
  fclose(file);
}

// The function that this library stands before.
template <typename F>
F next(F, const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

using Main = int (*)(int, char**, char**);
Main real_main = nullptr;

int counted_main(int argc, char** argv, char** environment) {
  read_settings();
  armed = true;
  const int code = real_main(argc, argv, environment);
  armed = false;
  write_counts();
  return code;
}

}  // namespace

#define NEXT(function) static const auto real = next(&::function, #function)
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                             void (*rtld_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  real_main = main;
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

namespace {

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? mode_t(va_arg(arguments, int)) : 0;
}

}  // namespace

#define DEFINE_OPEN(name)                               \
  EXPORT int name(const char* path, int flags, ...) {   \
    va_list arguments;                                  \
    va_start(arguments, flags);                         \
    const mode_t mode = mode_of(flags, arguments);      \
    va_end(arguments);                                  \
    NEXT(name);                                         \
    return fails(kOpen) ? -1 : real(path, flags, mode); \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                          \
  EXPORT int name(int directory, const char* path, int flags, ...) { \
    va_list arguments;                                               \
    va_start(arguments, flags);                                      \
    const mode_t mode = mode_of(flags, arguments);                   \
    va_end(arguments);                                               \
    NEXT(name);                                                      \
    return fails(kOpen) ? -1 : real(directory, path, flags, mode);   \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

#define DEFINE_FOPEN(name)                                \
  EXPORT FILE* name(const char* path, const char* mode) { \
    NEXT(name);                                           \
    return fails(kOpen) ? nullptr : real(path, mode);     \
  }
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

EXPORT ssize_t read(int fd, void* to, size_t n) {
  NEXT(read);
  return fails(kRead) ? -1 : real(fd, to, n);
}
EXPORT ssize_t pread(int fd, void* to, size_t n, off_t at) {
  NEXT(pread);
  return fails(kRead) ? -1 : real(fd, to, n, at);
}
EXPORT ssize_t pread64(int fd, void* to, size_t n, off64_t at) {
  NEXT(pread64);
  return fails(kRead) ? -1 : real(fd, to, n, at);
}
EXPORT ssize_t write(int fd, const void* from, size_t n) {
  NEXT(write);
  return fd != STDERR_FILENO && fails(kWrite) ? -1 : real(fd, from, n);
}
EXPORT ssize_t pwrite(int fd, const void* from, size_t n, off_t at) {
  NEXT(pwrite);
  return fails(kWrite) ? -1 : real(fd, from, n, at);
}
EXPORT ssize_t pwrite64(int fd, const void* from, size_t n, off64_t at) {
  NEXT(pwrite64);
  return fails(kWrite) ? -1 : real(fd, from, n, at);
}
EXPORT int fsync(int fd) {
  NEXT(fsync);
  return fails(kFsync) ? -1 : real(fd);
}
// The descriptor is closed all the same, as Linux does.
EXPORT int close(int fd) {
  NEXT(close);
  const bool failed = fails(kClose);
  const int error = errno, result = real(fd);
  if (failed) errno = error;
  return failed ? -1 : result;
}
EXPORT int flock(int fd, int operation) noexcept {
  NEXT(flock);
  return fails(kFlock) ? -1 : real(fd, operation);
}
EXPORT int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return fails(kRename) ? -1 : real(from, to);
}
EXPORT int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  NEXT(renameat2);
  return fails(kRename) ? -1 : real(a, from, b, to, flags);
}
EXPORT char* mkdtemp(char* pattern) noexcept {
  NEXT(mkdtemp);
  return fails(kMkdir) ? nullptr : real(pattern);
}
EXPORT int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return fails(kMkdir) ? -1 : real(path, mode);
}
EXPORT int unlink(const char* path) noexcept {
  NEXT(unlink);
  return fails(kUnlink) ? -1 : real(path);
}
EXPORT int unlinkat(int directory, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return fails(kUnlink) ? -1 : real(directory, path, flags);
}
EXPORT int rmdir(const char* path) noexcept {
  NEXT(rmdir);
  return fails(kUnlink) ? -1 : real(path);
}
EXPORT void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) noexcept {
  NEXT(mmap);
  return fails(kMmap) ? MAP_FAILED : real(at, n, protection, flags, fd, offset);
}
EXPORT void* mmap64(void* at, size_t n, int protection, int flags, int fd,
                    off64_t offset) noexcept {
  NEXT(mmap64);
  return fails(kMmap) ? MAP_FAILED : real(at, n, protection, flags, fd, offset);
}
EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* argument) noexcept {
  NEXT(pthread_create);
  return fails(kThread) ? errno : real(thread, attributes, run, argument);
}

// dlsym allocates, so that these go to libc by its other names for them.
extern "C" {
void* __libc_malloc(size_t n);
void* __libc_calloc(size_t count, size_t n);
void* __libc_realloc(void* old, size_t n);
void* __libc_memalign(size_t alignment, size_t n);
}
EXPORT void* malloc(size_t n) noexcept { return fails(kMalloc) ? nullptr : __libc_malloc(n); }
EXPORT void* calloc(size_t count, size_t n) noexcept {
  return fails(kMalloc) ? nullptr : __libc_calloc(count, n);
}
EXPORT void* realloc(void* old, size_t n) noexcept {
  return fails(kMalloc) ? nullptr : __libc_realloc(old, n);
}
EXPORT void* aligned_alloc(size_t alignment, size_t n) noexcept {
  return fails(kMalloc) ? nullptr : __libc_memalign(alignment, n);
}
EXPORT int posix_memalign(void** to, size_t alignment, size_t n) noexcept {
  if (fails(kMalloc)) return errno;
  *to = __libc_memalign(alignment, n);
  return *to == nullptr ? ENOMEM : 0;
}
