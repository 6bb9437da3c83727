/* Logging and fault injection for file system calls, loaded before libc (LD_PRELOAD).
 *
 * Intercepts the calls on files below one folder: create, write, truncate, rename, remove and sync.
 * Calls can be logged, so that the states after a power loss can be reconstructed, and can be made to
 * fail. Other ways of writing are not supported and abort the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define MAX_FD 4096

enum { MADE = 1, WRITTEN, CUT, SYNCED, RENAMED, REMOVED, MARKED, FOLDER_SYNCED };
enum { NONE, FULL, BROKEN, SHORT };

static char root[4096];
static char *names[MAX_FD]; /* names of open files below the folder */
static int journal = -1;
static long calls, fails_at, failed_syncs;
static int kind = NONE, lasts;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct record {
    int32_t what;
    int32_t name_length, other_length;
    int32_t padding;
    int64_t inode, offset, length;
};

/* ------------------------------------------------------- interface for Python */

void disk_watch(const char *folder) { snprintf(root, sizeof root, "%s/", folder); }

void disk_record(const char *path) {
    journal = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
}

/* Make the call of this number fail, or all calls from it on. */
void disk_fail(long at, int how, int lasting) {
    calls = failed_syncs = 0, fails_at = at, kind = how, lasts = lasting;
}

long disk_calls(void) { return calls; }

long disk_failed_syncs(void) { return failed_syncs; }

static void note(int what, const char *name, const char *other, uint64_t inode, int64_t offset,
                 int64_t length, const void *data) {
    if (journal < 0) return;
    struct record head = {what, name ? strlen(name) : 0, other ? strlen(other) : 0, 0, inode,
                          offset, length};
    ssize_t (*out)(int, const void *, size_t) = REAL(write);
    int bad = out(journal, &head, sizeof head) != sizeof head;
    if (name) bad |= out(journal, name, head.name_length) != head.name_length;
    if (other) bad |= out(journal, other, head.other_length) != head.other_length;
    if (data) bad |= out(journal, data, length) != length;
    if (bad) abort();
}

void disk_mark(long number) { note(MARKED, NULL, NULL, 0, number, 0, NULL); }

/* ------------------------------------------------------------------ helpers */

static void refuse(const char *what) {
    fprintf(stderr, "faultydisk: %s is not covered\n", what);
    abort();
}

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* SQLite rebuilds its shared memory file (-shm) after a crash. */
static int is_kept(const char *name) { return !ends_with(name, "-shm"); }

static const char *below(int folder, const char *path, char *space) {
    if (!root[0] || !path) return NULL;
    if (path[0] == '/')
        snprintf(space, 4096, "%s", path);
    else if (folder == AT_FDCWD) {
        if (!getcwd(space, 2048)) return NULL;
        size_t n = strlen(space);
        snprintf(space + n, 4096 - n, "/%s", path);
    } else if (folder >= 0 && folder < MAX_FD && names[folder])
        snprintf(space, 4096, "%s/%s", names[folder], path);
    else
        return NULL;
    size_t n = strlen(root) - 1;
    if (strncmp(space, root, n) || (space[n] != '/' && space[n] != 0)) return NULL;
    return space;
}

static const char *name_of(int fd) { return fd >= 0 && fd < MAX_FD ? names[fd] : NULL; }

static uint64_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) ? 0 : status.st_ino;
}

/* Return the fault of a call, if any. */
static int failing(void) {
    if (kind == NONE) return NONE;
    long number = calls++;
    if (number == fails_at) return kind;
    if (lasts && number > fails_at) return kind == SHORT ? FULL : kind;
    return NONE;
}

static int fail_as(int how) {
    errno = how == BROKEN ? EIO : ENOSPC;
    return -1;
}

/* ------------------------------------------------- opening, closing, mapping */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char space[4096];
    const char *name = below(folder, path, space);
    struct stat status;
    int was = name && stat(name, &status) == 0;
    pthread_mutex_lock(&lock);
    int how = name && !was && flags & O_CREAT ? failing() : NONE;
    int fd = how == NONE || how == SHORT ? REAL(openat)(folder, path, flags, mode) : fail_as(how);
    if (fd >= 0 && name && (flags & O_TMPFILE) != O_TMPFILE) {
        if (fd >= MAX_FD) refuse("so many open files");
        int saved = errno;
        free(names[fd]);
        names[fd] = strdup(name);
        if (!was && is_kept(name)) note(MADE, name, NULL, inode_of(fd), 0, 0, NULL);
        if (was && flags & O_TRUNC && is_kept(name))
            note(CUT, NULL, NULL, inode_of(fd), 0, 0, NULL);
        errno = saved;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE                              \
    mode_t mode = 0;                      \
    if (flags & (O_CREAT | O_TMPFILE)) {  \
        va_list more;                     \
        va_start(more, flags);            \
        mode = va_arg(more, mode_t);      \
        va_end(more);                     \
    }

int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return opened(at, path, flags, mode); }
int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int close(int fd) {
    if (name_of(fd)) {
        pthread_mutex_lock(&lock);
        free(names[fd]);
        names[fd] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return REAL(close)(fd);
}

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    const char *name = flags & MAP_ANONYMOUS ? NULL : name_of(fd);
    if (name && access & PROT_WRITE && flags & MAP_SHARED && is_kept(name))
        refuse("writing to memory that is a file");
    return REAL(mmap)(at, length, access, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    return mmap(at, length, access, flags, fd, offset);
}

/* ------------------------------------------------------------------- writing */

static ssize_t put(int fd, const void *data, size_t length, off_t offset, int has_offset) {
    const char *name = name_of(fd);
    if (!name)
        return has_offset ? REAL(pwrite)(fd, data, length, offset) : REAL(write)(fd, data, length);
    pthread_mutex_lock(&lock);
    int how = failing();
    ssize_t n = how == FULL || how == BROKEN ? fail_as(how) : 0;
    if (n == 0) {
        if (how == SHORT && length > 1) length /= 2;
        if (!has_offset) offset = lseek(fd, 0, REAL(fcntl)(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
        n = has_offset ? REAL(pwrite)(fd, data, length, offset) : REAL(write)(fd, data, length);
        int saved = errno;
        if (n > 0 && is_kept(name)) note(WRITTEN, NULL, NULL, inode_of(fd), offset, n, data);
        errno = saved;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t write(int fd, const void *data, size_t n) { return put(fd, data, n, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return put(fd, data, n, at, 1); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return put(fd, data, n, at, 1); }

#define NOT_COVERED(result, name, arguments, fd, call) \
    result name arguments {                            \
        if (name_of(fd)) refuse(#name);                \
        return REAL(name) call;                        \
    }
NOT_COVERED(ssize_t, writev, (int fd, const struct iovec *v, int n), fd, (fd, v, n))
NOT_COVERED(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at), fd, (fd, v, n, at))
NOT_COVERED(ssize_t, copy_file_range,
            (int from, off_t *a, int to, off_t *b, size_t n, unsigned flags), to,
            (from, a, to, b, n, flags))
NOT_COVERED(int, fallocate, (int fd, int mode, off_t at, off_t n), fd, (fd, mode, at, n))
NOT_COVERED(int, posix_fallocate, (int fd, off_t at, off_t n), fd, (fd, at, n))

#include <sys/sendfile.h>
NOT_COVERED(ssize_t, sendfile, (int to, int from, off_t *at, size_t n), to, (to, from, at, n))
NOT_COVERED(ssize_t, sendfile64, (int to, int from, off_t *at, size_t n), to, (to, from, at, n))

int ftruncate(int fd, off_t length) {
    const char *name = name_of(fd);
    if (!name) return REAL(ftruncate)(fd, length);
    pthread_mutex_lock(&lock);
    int how = failing();
    int bad = how == FULL || how == BROKEN ? fail_as(how) : REAL(ftruncate)(fd, length);
    if (!bad && is_kept(name)) note(CUT, NULL, NULL, inode_of(fd), length, 0, NULL);
    pthread_mutex_unlock(&lock);
    return bad;
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

/* ------------------------------------------------------------------- syncing */

static int synced(int fd, int (*real)(int)) {
    const char *name = name_of(fd);
    if (!name) return real(fd);
    pthread_mutex_lock(&lock);
    int how = failing();
    int bad = how == FULL || how == BROKEN ? fail_as(how) : 0; /* a real sync would only be slow */
    if (bad) failed_syncs++;
    struct stat status;
    if (!bad && !fstat(fd, &status)) {
        if (S_ISDIR(status.st_mode))
            note(FOLDER_SYNCED, name, NULL, 0, 0, 0, NULL);
        else
            note(SYNCED, NULL, NULL, status.st_ino, 0, 0, NULL);
    }
    pthread_mutex_unlock(&lock);
    return bad;
}
int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

/* --------------------------------------------------------------------- names */

static int renamed(int a, const char *from, int b, const char *to, unsigned flags) {
    char space[4096], room[4096];
    const char *old = below(a, from, space), *new = below(b, to, room);
    if (!old && !new) return REAL(renameat2)(a, from, b, to, flags);
    if (!old || !new || flags) refuse("renaming from elsewhere");
    pthread_mutex_lock(&lock);
    int how = failing();
    int bad = how == FULL || how == BROKEN ? fail_as(how) : REAL(renameat2)(a, from, b, to, 0);
    if (!bad) note(RENAMED, old, new, 0, 0, 0, NULL);
    pthread_mutex_unlock(&lock);
    return bad;
}
int rename(const char *a, const char *b) { return renamed(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return renamed(a, from, b, to, flags);
}

static int removed(int at, const char *path, int flags) {
    char space[4096];
    const char *name = below(at, path, space);
    pthread_mutex_lock(&lock);
    int how = name ? failing() : NONE;
    int bad = how == BROKEN ? fail_as(how) : REAL(unlinkat)(at, path, flags); /* needs no space */
    if (!bad && name && is_kept(name)) note(REMOVED, name, NULL, 0, 0, 0, NULL);
    pthread_mutex_unlock(&lock);
    return bad;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, flags); }
int remove(const char *path) { return removed(AT_FDCWD, path, 0); }

int link(const char *from, const char *to) {
    char space[4096];
    if (below(AT_FDCWD, to, space)) refuse("link");
    return REAL(link)(from, to);
}
int truncate(const char *path, off_t length) {
    char space[4096];
    if (below(AT_FDCWD, path, space)) refuse("truncate");
    return REAL(truncate)(path, length);
}
int truncate64(const char *path, off_t length) { return truncate(path, length); }
