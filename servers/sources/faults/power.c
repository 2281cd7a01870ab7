/* Ends a mounted ext4 file system as a loss of power does: what was not written to its disk is lost. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t)
#define NO_LOG_FLUSH 2

int main(int count, char **arguments) {
    uint32_t how = NO_LOG_FLUSH;
    int folder = count == 2 ? open(arguments[1], O_RDONLY) : -1;
    if (folder < 0 || ioctl(folder, EXT4_IOC_SHUTDOWN, &how)) {
        perror("power");
        return 1;
    }
    return 0;
}
