/* Preloaded: what writes to files below SLOW_DIR, opens them for it, renames or removes them takes SLOW_MS longer.
   gcc -shared -fPIC -O2 -o slow_disk.so slow_disk.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void wait_below(const char *path) {
    const char *folder = getenv("SLOW_DIR"), *text = getenv("SLOW_MS");
    long milliseconds = text ? atol(text) : 0;
    if (!path || !folder || strncmp(path, folder, strlen(folder))) return;
    struct timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

static void wait_for(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    wait_below(path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) { REAL(write); wait_for(fd); return real(fd, data, size); }
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev); wait_for(fd); return real(fd, parts, count); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); wait_for(fd); return real(fd, data, size, at);
}
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); wait_for(fd); return real(fd, size); }
int unlink(const char *path) { REAL(unlink); wait_below(path); return real(path); }
int rename(const char *from, const char *to) { REAL(rename); wait_below(from); return real(from, to); }
int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (flags & (O_WRONLY | O_RDWR)) wait_below(path);
    return real(path, flags, mode);
}
