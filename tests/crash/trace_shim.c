/* Records every call by which a process changes files under one folder, in order.
 *
 * LD_PRELOAD it with TRACE_ROOT, the folder, and TRACE_FILE, which gets the records: a header and
 * its data each, written by one append. Calls that failed changed nothing and are left out. What
 * this file does not know of (mmap, copy_file_range, ...) is missing from the trace; who replays
 * it must compare the outcome with the files.
 *
 * A process that sets trace_calls_left kills itself after so many records, from the next one of
 * the kind trace_counts_from on, or from the next one of any kind where that is 0.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* CPython calls the names that end in 64. */
#define ALSO(alias, name) __asm__(".globl " #alias "\n.set " #alias ", " #name)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

volatile int trace_calls_left;
volatile char trace_counts_from;

static int trace_fd = -1;
static const char *root;
static size_t root_length;

struct header {
    char kind;
    uint64_t inode;
    uint64_t offset; /* of a write, or a length */
    uint64_t num_bytes; /* of the data that follows: content, or paths below the root */
} __attribute__((packed));

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("TRACE_FILE");
    root = getenv("TRACE_ROOT");
    if (!name || !root) {
        fprintf(stderr, "trace_shim: set TRACE_FILE and TRACE_ROOT\n");
        _exit(3);
    }
    root_length = strlen(root);
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
    trace_fd = (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0644);
    if (trace_fd < 0) {
        perror("trace_shim: TRACE_FILE");
        _exit(3);
    }
}

static void record(char kind, uint64_t inode, uint64_t offset, const void *data, size_t num_bytes) {
    struct header header = {kind, inode, offset, num_bytes};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)data, num_bytes}};
    if (syscall(SYS_writev, trace_fd, parts, 2) != (long)(sizeof header + num_bytes))
        abort();
    if (trace_counts_from && trace_counts_from != kind)
        return;
    trace_counts_from = 0;
    if (trace_calls_left > 0 && --trace_calls_left == 0)
        kill(getpid(), SIGKILL);
}

/* The path below the root ("" for the root itself), NULL for a path elsewhere. */
static const char *below_root(const char *path) {
    if (strncmp(path, root, root_length))
        return NULL;
    if (path[root_length] == '/')
        return path + root_length + 1;
    return path[root_length] ? NULL : path + root_length;
}

/* Whether the descriptor is of something below the root; then also its inode. */
static int is_traced(int fd, uint64_t *inode) {
    char link[64], path[4096];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || fstat(fd, &status))
        return 0;
    path[length] = 0;
    *inode = status.st_ino;
    return below_root(path) != NULL;
}

static void record_path(char kind, const char *path) {
    const char *name = below_root(path);
    struct stat status;
    if (name)
        record(kind, lstat(path, &status) ? 0 : status.st_ino, 0, name, strlen(name));
}

/* Both must be below the root, or neither. */
static void record_paths(char kind, const char *from, const char *to) {
    const char *old = below_root(from), *new = below_root(to);
    char both[8192];
    if (!old && !new)
        return;
    if (!old || !new)
        abort();
    int length = snprintf(both, sizeof both, "%s%c%s", old, 0, new);
    record(kind, 0, 0, both, (size_t)length);
}

/* Calls relative to an open folder: none is made below the root so far. */
static void refuse(int folder, const char *path) {
    uint64_t inode;
    if (folder != AT_FDCWD && path[0] != '/' && is_traced(folder, &inode))
        abort();
}

/* ---- content and length ---- */

static ssize_t wrote(int fd, const struct iovec *parts, ssize_t num_written, off_t offset) {
    uint64_t inode;
    int saved = errno;
    if (num_written > 0 && is_traced(fd, &inode)) {
        if (offset < 0)
            offset = lseek(fd, 0, SEEK_CUR) - num_written;
        char *data = malloc((size_t)num_written);
        size_t done = 0;
        for (; done < (size_t)num_written; parts++) {
            size_t rest = (size_t)num_written - done;
            size_t length = parts->iov_len < rest ? parts->iov_len : rest;
            memcpy(data + done, parts->iov_base, length);
            done += length;
        }
        record('W', inode, (uint64_t)offset, data, done);
        free(data);
    }
    errno = saved;
    return num_written;
}

ssize_t write(int fd, const void *data, size_t num_bytes) {
    struct iovec part = {(void *)data, num_bytes};
    return wrote(fd, &part, REAL(write)(fd, data, num_bytes), -1);
}

ssize_t writev(int fd, const struct iovec *parts, int num_parts) {
    return wrote(fd, parts, REAL(writev)(fd, parts, num_parts), -1);
}

ssize_t pwrite(int fd, const void *data, size_t num_bytes, off_t offset) {
    struct iovec part = {(void *)data, num_bytes};
    return wrote(fd, &part, REAL(pwrite)(fd, data, num_bytes, offset), offset);
}
ALSO(pwrite64, pwrite);

ssize_t pwritev(int fd, const struct iovec *parts, int num_parts, off_t offset) {
    return wrote(fd, parts, REAL(pwritev)(fd, parts, num_parts, offset), offset);
}
ALSO(pwritev64, pwritev);

ssize_t pwritev2(int fd, const struct iovec *parts, int num_parts, off_t offset, int flags) {
    return wrote(fd, parts, REAL(pwritev2)(fd, parts, num_parts, offset, flags), offset);
}
ALSO(pwritev64v2, pwritev2);

int ftruncate(int fd, off_t length) {
    uint64_t inode;
    int result = REAL(ftruncate)(fd, length);
    if (result == 0 && is_traced(fd, &inode))
        record('T', inode, (uint64_t)length, NULL, 0);
    return result;
}
ALSO(ftruncate64, ftruncate);

int posix_fallocate(int fd, off_t offset, off_t num_bytes) {
    uint64_t inode;
    int result = REAL(posix_fallocate)(fd, offset, num_bytes);
    if (result == 0 && is_traced(fd, &inode))
        record('F', inode, (uint64_t)(offset + num_bytes), NULL, 0);
    return result;
}
ALSO(posix_fallocate64, posix_fallocate);

int fallocate(int fd, int mode, off_t offset, off_t num_bytes) {
    uint64_t inode;
    int result = REAL(fallocate)(fd, mode, offset, num_bytes);
    if (result == 0 && is_traced(fd, &inode)) {
        if (mode != 0)
            abort();
        record('F', inode, (uint64_t)(offset + num_bytes), NULL, 0);
    }
    return result;
}
ALSO(fallocate64, fallocate);

/* ---- names ---- */

int openat(int folder, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    struct stat before;
    int existed = flags & (O_CREAT | O_TRUNC) ? lstat(path, &before) == 0 : 1;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    int saved = errno;
    uint64_t inode;
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) {
        refuse(folder, path);
        if (!existed)
            record_path('C', path);
        else if (flags & O_TRUNC && is_traced(fd, &inode))
            record('T', inode, 0, NULL, 0);
    }
    errno = saved;
    return fd;
}
ALSO(openat64, openat);

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return openat(AT_FDCWD, path, flags, mode);
}
ALSO(open64, open);

int linkat(int folder, const char *from, int to_folder, const char *to, int flags) {
    int result = REAL(linkat)(folder, from, to_folder, to, flags);
    if (result == 0) {
        refuse(folder, from);
        refuse(to_folder, to);
        record_paths('L', from, to);
    }
    return result;
}

int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char *path, int flags) {
    int result = REAL(unlinkat)(folder, path, flags);
    if (result == 0) {
        refuse(folder, path);
        record_path('U', path);
    }
    return result;
}

int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

int renameat(int folder, const char *from, int to_folder, const char *to) {
    int result = REAL(renameat)(folder, from, to_folder, to);
    if (result == 0) {
        refuse(folder, from);
        refuse(to_folder, to);
        record_paths('R', from, to);
    }
    return result;
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    int result = REAL(mkdirat)(folder, path, mode);
    if (result == 0) {
        refuse(folder, path);
        record_path('M', path);
    }
    return result;
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

/* ---- durability ---- */

static int synced(int fd, int result) {
    uint64_t inode;
    if (result == 0 && is_traced(fd, &inode))
        record('S', inode, 0, NULL, 0);
    return result;
}

int fsync(int fd) {
    return synced(fd, REAL(fsync)(fd));
}

int fdatasync(int fd) {
    return synced(fd, REAL(fdatasync)(fd));
}
