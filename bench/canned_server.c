/* A MongoDB replica set of canned replies: fast enough that what a benchmark measures is its client.
 *
 *   canned_server MEMBERS streaming|polling
 *
 * Prints its ports in one line and serves until its standard input ends. One thread, epoll. It reads
 * of a command its name and five of its fields, and believes everything. The first member is the
 * primary; there are no elections, no sessions, no data. A cursor's id is the number of batches that it
 * still has, so nothing is kept of it.
 *
 * A line "MEMBER SHARE MS" on its standard input has that member answer such a share of its finds so
 * much later. Each line, an empty one too, is answered by one with the finds that each member has
 * received and, as the last number, the cursors that are open.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MEMBERS = 64, MAX_CONNECTIONS = 4096, MAX_MESSAGE = 1 << 16, MAX_REPLY = 1 << 20 };
enum { OP_REPLY = 1, OP_QUERY = 2004, OP_MSG = 2013, MORE_TO_COME = 2, EXHAUST_ALLOWED = 1 << 16 };
enum { DOCUMENTS_OF_A_CURSOR = 1000, DEFAULT_BATCH = 100 };

typedef struct {
    int member;
    size_t length;
    char received[MAX_MESSAGE];
    int32_t awaiting; /* request id of the hello that is answered later; 0 for none */
    int64_t await_ms, await_until;
    char *late; /* a reply that is sent later; a client waits for it before it sends more */
    size_t late_length;
    int64_t late_at;
} Connection;

typedef struct {
    char *at;
    size_t length;
} Bson;

typedef struct {
    char name[64];
    int64_t first, limit, batch_size, max_await_ms, cursors;
    int has_topology_version;
} Command;

static Connection *connections[MAX_CONNECTIONS];
static int ports[MAX_MEMBERS], listeners[MAX_MEMBERS], members, streaming, poller;
static char reply[MAX_REPLY];
static double late_share[MAX_MEMBERS];
static int64_t late_ms[MAX_MEMBERS], finds[MAX_MEMBERS], open_cursors;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void raw(Bson *b, const void *bytes, size_t n) {
    memcpy(b->at + b->length, bytes, n);
    b->length += n;
}
static void element(Bson *b, char type, const char *name) {
    raw(b, &type, 1);
    raw(b, name, strlen(name) + 1);
}
static void int32(Bson *b, const char *name, int32_t v) { element(b, 0x10, name), raw(b, &v, 4); }
static void int64(Bson *b, const char *name, int64_t v) { element(b, 0x12, name), raw(b, &v, 8); }
static void date(Bson *b, const char *name, int64_t v) { element(b, 0x09, name), raw(b, &v, 8); }
static void real(Bson *b, const char *name, double v) { element(b, 0x01, name), raw(b, &v, 8); }
static void yes_no(Bson *b, const char *name, char v) { element(b, 0x08, name), raw(b, &v, 1); }
static void text(Bson *b, const char *name, const char *v) {
    int32_t n = (int32_t)strlen(v) + 1;
    element(b, 0x02, name);
    raw(b, &n, 4);
    raw(b, v, (size_t)n);
}
static size_t begin(Bson *b, char type, const char *name) {
    size_t start;
    if (name) element(b, type, name);
    start = b->length;
    b->length += 4;
    return start;
}
static void end(Bson *b, size_t start) {
    int32_t n;
    b->at[b->length++] = 0;
    n = (int32_t)(b->length - start);
    memcpy(b->at + start, &n, 4);
}

static void address(char *out, size_t size, int member) {
    snprintf(out, size, "127.0.0.1:%d", ports[member]);
}

static void topology_version(Bson *b) {
    static const char id[12] = "canned-reply";
    size_t start = begin(b, 0x03, "topologyVersion");
    element(b, 0x07, "processId");
    raw(b, id, 12);
    int64(b, "counter", 0);
    end(b, start);
}

static void hello(Bson *b, int member) {
    char name[32], key[16];
    size_t hosts;
    yes_no(b, "helloOk", 1);
    yes_no(b, member == 0 ? "isWritablePrimary" : "secondary", 1);
    yes_no(b, "ismaster", member == 0);
    text(b, "setName", "canned");
    int32(b, "setVersion", 1);
    address(name, sizeof name, member);
    text(b, "me", name);
    address(name, sizeof name, 0);
    text(b, "primary", name);
    hosts = begin(b, 0x04, "hosts");
    for (int i = 0; i < members; i++) {
        snprintf(key, sizeof key, "%d", i);
        address(name, sizeof name, i);
        text(b, key, name);
    }
    end(b, hosts);
    if (streaming) topology_version(b);
    int32(b, "maxBsonObjectSize", 16777216);
    int32(b, "maxMessageSizeBytes", 48000000);
    int32(b, "maxWriteBatchSize", 100000);
    date(b, "localTime", 1700000000000);
    int32(b, "logicalSessionTimeoutMinutes", 30);
    int32(b, "connectionId", 1);
    int32(b, "minWireVersion", 0);
    int32(b, "maxWireVersion", 25);
}

static void cursor(Bson *b, const char *batch, int64_t id, int documents) {
    size_t start = begin(b, 0x03, "cursor"), array, document;
    char key[16];
    array = begin(b, 0x04, batch);
    for (int i = 0; i < documents; i++) {
        snprintf(key, sizeof key, "%d", i);
        document = begin(b, 0x03, key);
        int32(b, "_id", i);
        text(b, "name", "a customer of ours");
        real(b, "balance", 12.5);
        end(b, document);
    }
    end(b, array);
    int64(b, "id", id);
    text(b, "ns", "bench.coll");
    end(b, start);
}

static void answer(Bson *b, const Command *c, int member) {
    int batch = (int)(c->batch_size > 0 ? c->batch_size : DEFAULT_BATCH);
    int documents = c->limit > 0 ? (int)c->limit : DOCUMENTS_OF_A_CURSOR;
    if (!strcasecmp(c->name, "hello") || !strcasecmp(c->name, "ismaster")) {
        hello(b, member);
    } else if (!strcmp(c->name, "find")) {
        if (batch > documents) batch = documents;
        open_cursors += documents > batch;
        cursor(b, "firstBatch", (documents - 1) / batch, batch);
    } else if (!strcmp(c->name, "getMore")) {
        open_cursors -= c->first == 1;
        cursor(b, "nextBatch", c->first - 1, batch);
    } else if (!strcmp(c->name, "killCursors")) {
        open_cursors -= c->cursors;
    } else if (!strcmp(c->name, "aggregate")) {
        cursor(b, "firstBatch", 0, 1);
    } else if (!strcmp(c->name, "insert") || !strcmp(c->name, "delete")) {
        int32(b, "n", 1);
    } else if (!strcmp(c->name, "update")) {
        int32(b, "n", 1);
        int32(b, "nModified", 1);
    }
    real(b, "ok", 1.0);
}

/* Bytes of a value, as far as they tell: -1 for what no driver sends in a command's first level. */
static int64_t size_of(unsigned char type, const char *value) {
    int32_t n;
    memcpy(&n, value, 4);
    switch (type) {
    case 0x01: case 0x09: case 0x11: case 0x12: return 8;
    case 0x02: return 4 + (int64_t)n;
    case 0x03: case 0x04: return n;
    case 0x05: return 5 + (int64_t)n;
    case 0x07: return 12;
    case 0x08: return 1;
    case 0x0A: return 0;
    case 0x10: return 4;
    default: return -1;
    }
}

static int64_t number(unsigned char type, const char *value) {
    int32_t small;
    int64_t large;
    double d;
    memcpy(&small, value, 4);
    memcpy(&large, value, 8);
    memcpy(&d, value, 8);
    return type == 0x10 ? small : type == 0x12 ? large : type == 0x01 ? (int64_t)d : 0;
}

/* How many elements an array of int64 has. */
static int64_t elements(const char *array) {
    int64_t n = 0;
    for (const char *at = array + 4; *at; n++) at += 1 + strlen(at + 1) + 1 + 8;
    return n;
}

static Command read_command(const char *document, const char *limit) {
    Command c = {0};
    const char *at = document + 4;
    while (at < limit && *at) {
        unsigned char type = (unsigned char)*at++;
        const char *name = at, *value = at + strlen(at) + 1;
        int64_t size = size_of(type, value);
        if (!c.name[0]) {
            snprintf(c.name, sizeof c.name, "%s", name);
            c.first = number(type, value);
        } else if (!strcmp(name, "limit")) {
            c.limit = number(type, value);
        } else if (!strcmp(name, "batchSize")) {
            c.batch_size = number(type, value);
        } else if (!strcmp(name, "maxAwaitTimeMS")) {
            c.max_await_ms = number(type, value);
        } else if (!strcmp(name, "cursors")) {
            c.cursors = elements(value);
        } else if (!strcmp(name, "topologyVersion")) {
            c.has_topology_version = 1;
        }
        if (size < 0) break;
        at = value + size;
    }
    return c;
}

static void drop(int fd) {
    close(fd);
    free(connections[fd]->late);
    free(connections[fd]);
    connections[fd] = NULL;
}

static void put32(char *at, int32_t v) { memcpy(at, &v, 4); }

static void send_all(int fd, const char *bytes, size_t length) {
    for (size_t sent = 0; sent < length;) {
        ssize_t n = send(fd, bytes + sent, length - sent, MSG_NOSIGNAL);
        if (n <= 0) return; /* its next read says that it is gone */
        sent += (size_t)n;
    }
}

static int is_late(const Command *c, int member) {
    if (strcmp(c->name, "find")) return 0;
    finds[member]++;
    return rand() < late_share[member] * RAND_MAX;
}

static void send_reply(int fd, int op, int32_t to, int32_t flags, const Command *c, int member) {
    Bson b = {reply, 0};
    Connection *connection = connections[fd];
    size_t start;
    if (op == OP_QUERY) {
        memset(reply, 0, 36);
        b.length = 36;
        put32(reply + 32, 1);
    } else {
        b.length = 21;
        put32(reply + 16, flags);
        reply[20] = 0;
    }
    start = begin(&b, 0, NULL);
    answer(&b, c, member);
    end(&b, start);
    put32(reply, (int32_t)b.length);
    put32(reply + 4, 1);
    put32(reply + 8, to);
    put32(reply + 12, op == OP_QUERY ? OP_REPLY : OP_MSG);
    if (!is_late(c, member)) {
        send_all(fd, reply, b.length);
        return;
    }
    connection->late = memcpy(malloc(b.length), reply, b.length);
    connection->late_length = b.length;
    connection->late_at = now_ms() + late_ms[member];
}

static void handle(int fd, Connection *connection, char *message, int32_t size) {
    int32_t id, op, flags;
    const char *document = message + 21;
    Command c;
    memcpy(&id, message + 4, 4);
    memcpy(&op, message + 12, 4);
    memcpy(&flags, message + 16, 4);
    if (op == OP_QUERY) document = message + 20 + strlen(message + 20) + 1 + 8;
    c = read_command(document, message + size);
    if (op == OP_MSG && c.has_topology_version && (flags & EXHAUST_ALLOWED)) {
        connection->awaiting = id;
        connection->await_ms = c.max_await_ms;
        connection->await_until = now_ms() + c.max_await_ms;
        return;
    }
    if (op == OP_QUERY || !(flags & MORE_TO_COME)) send_reply(fd, op, id, 0, &c, connection->member);
}

static void receive(int fd) {
    Connection *c = connections[fd];
    ssize_t n = recv(fd, c->received + c->length, MAX_MESSAGE - c->length, 0);
    if (n <= 0) {
        drop(fd);
        return;
    }
    c->length += (size_t)n;
    for (;;) {
        int32_t size;
        if (c->length < 21) return;
        memcpy(&size, c->received, 4);
        if (size < 21 || size > MAX_MESSAGE) {
            drop(fd);
            return;
        }
        if (c->length < (size_t)size) return;
        handle(fd, c, c->received, size);
        c->length -= (size_t)size;
        memmove(c->received, c->received + size, c->length);
    }
}

/* Sends what is due. The milliseconds until something else is, at most 1000. */
static int send_due(void) {
    Command c = {.name = "hello"};
    int64_t now = now_ms(), next = now + 1000;
    for (int fd = 0; fd < MAX_CONNECTIONS; fd++) {
        Connection *each = connections[fd];
        if (each && each->awaiting && each->await_until <= now) {
            send_reply(fd, OP_MSG, each->awaiting, MORE_TO_COME, &c, each->member);
            each->await_until = now + each->await_ms;
        }
        if (each && each->late && each->late_at <= now) {
            send_all(fd, each->late, each->late_length);
            free(each->late);
            each->late = NULL;
        }
        if (each && each->late && each->late_at < next) next = each->late_at;
    }
    return (int)(next - now);
}

/* Whether there was a line on the standard input. */
static int obey(void) {
    char line[128];
    int member, ms;
    double share;
    if (!fgets(line, sizeof line, stdin)) return 0;
    if (sscanf(line, "%d %lf %d", &member, &share, &ms) == 3 && member >= 0 && member < members) {
        late_share[member] = share;
        late_ms[member] = ms;
    }
    for (int i = 0; i < members; i++) printf("%lld ", (long long)finds[i]);
    printf("%lld\n", (long long)open_cursors);
    fflush(stdout);
    return 1;
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

static void listen_on(int member) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (void *)&at, size) || listen(fd, 1024)) {
        perror("canned_server");
        exit(1);
    }
    getsockname(fd, (void *)&at, &size);
    ports[member] = ntohs(at.sin_port);
    listeners[member] = fd;
    watch(fd);
}

static int member_of(int fd) {
    for (int i = 0; i < members; i++)
        if (listeners[i] == fd) return i;
    return -1;
}

static void take(int listener, int member) {
    int one = 1, fd = accept(listener, NULL, NULL);
    if (fd < 0) return;
    if (fd >= MAX_CONNECTIONS) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connections[fd] = calloc(1, sizeof(Connection));
    connections[fd]->member = member;
    watch(fd);
}

int main(int argc, char **argv) {
    struct epoll_event ready[64];
    members = argc > 1 ? atoi(argv[1]) : 0;
    streaming = argc > 2 && !strcmp(argv[2], "streaming");
    if (argc != 3 || members < 1 || members > MAX_MEMBERS) {
        fprintf(stderr, "usage: canned_server MEMBERS streaming|polling (1 to %d)\n", MAX_MEMBERS);
        return 2;
    }
    poller = epoll_create1(0);
    watch(STDIN_FILENO);
    for (int i = 0; i < members; i++) listen_on(i);
    for (int i = 0; i < members; i++) printf("%d%c", ports[i], i + 1 < members ? ' ' : '\n');
    fflush(stdout);
    for (int wait_ms = 1000;; wait_ms = send_due()) {
        int n = epoll_wait(poller, ready, 64, wait_ms);
        if (n < 0 && errno != EINTR) return 1;
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd, member;
            if (fd == STDIN_FILENO) {
                if (!obey()) return 0;
                continue;
            }
            member = member_of(fd);
            if (member >= 0) take(fd, member);
            else if (connections[fd]) receive(fd);
        }
    }
}
