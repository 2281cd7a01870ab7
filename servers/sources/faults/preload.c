/* Put before a program with LD_PRELOAD: its wall clock is set forward or back, and each sync of its disk takes longer, as
 * the file in FAULTS says while it runs. What is not written there is as the system has it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct faults {
    volatile int64_t wall_ns;
    volatile int64_t sync_ns;
};

static const struct faults none;
static const struct faults *faults = &none;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(0, sizeof(struct faults), PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED)
        faults = map;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t all = time->tv_sec * INT64_C(1000000000) + time->tv_nsec + faults->wall_ns;
        time->tv_sec = all / 1000000000;
        time->tv_nsec = all % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

static void wait_for_disk(void) {
    int64_t wait = faults->sync_ns;
    struct timespec left = {wait / 1000000000, wait % 1000000000};
    if (wait > 0)
        syscall(SYS_nanosleep, &left, 0);
}

int fsync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_disk();
    return (int)syscall(SYS_fdatasync, file);
}
