/* What one connection carries without a client library: SET or GET of keys over a unix socket, one
 * command at a time, from and into memory that is touched before the clock starts. What is read is
 * all there in the end, as it must be for a batch: each string has memory of its own.
 *
 * Usage: limit SOCKET set|get PREFIX FIRST COUNT BYTES
 * Prints the seconds that COUNT commands took on the keys PREFIX<FIRST>, PREFIX<FIRST+1>, ...
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void send_all(int fd, struct iovec *pieces, int count) {
    while (count > 0) {
        ssize_t sent = writev(fd, pieces, count);
        if (sent < 0) fail("writev");
        while (count > 0 && (size_t)sent >= pieces->iov_len) {
            sent -= pieces->iov_len;
            pieces++;
            count--;
        }
        if (count > 0) {
            pieces->iov_base = (char *)pieces->iov_base + sent;
            pieces->iov_len -= sent;
        }
    }
}

static void receive(int fd, char *into, size_t wanted) {
    while (wanted > 0) {
        ssize_t got = read(fd, into, wanted);
        if (got <= 0) fail("read");
        into += got;
        wanted -= got;
    }
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: limit SOCKET set|get PREFIX FIRST COUNT BYTES\n");
        return 2;
    }
    int set = !strcmp(argv[2], "set");
    long first = atol(argv[4]), count = atol(argv[5]), bytes = atol(argv[6]);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    size_t room = bytes + 64;
    char *memory = malloc(set ? room : room * count), *payload = memory;
    memset(memory, 'x', set ? room : room * count);
    char head[512], key[256], expected[64];
    int expected_bytes = sprintf(expected, "$%ld\r\n", bytes);
    double start = now();
    for (long at = first; at < first + count; at++) {
        int key_bytes = snprintf(key, sizeof key, "%s%ld", argv[3], at);
        if (set) {
            int head_bytes = snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%ld\r\n",
                                      key_bytes, key, bytes);
            struct iovec pieces[3] = {{head, head_bytes}, {payload, bytes}, {"\r\n", 2}};
            send_all(fd, pieces, 3);
            receive(fd, head, 5);
            if (memcmp(head, "+OK\r\n", 5)) return 3;
        } else {
            int head_bytes = snprintf(head, sizeof head, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n",
                                      key_bytes, key);
            struct iovec pieces[1] = {{head, head_bytes}};
            send_all(fd, pieces, 1);
            receive(fd, payload, expected_bytes + bytes + 2);
            if (memcmp(payload, expected, expected_bytes)) return 4;
            payload += room;
        }
    }
    printf("%.9f\n", now() - start);
    return 0;
}
