/* test/file/crash.c -- records changes of a folder, and builds the states that a crash may
 * leave.
 *
 * t_crash is a list of operations on nodes (files and folders, as inodes) and slots. A slot is
 * a name in a folder; an operation NAME puts a node into a slot or empties it. `add_call`
 * converts calls to operations: a rename becomes two, NAME of the new slot and NAME of the old.
 *
 * A state is a prefix of the operations and a choice for each operation in it. `build` puts the
 * state into a fresh folder. Two states are equal if the hashes of their effective choices are
 * equal, and equal states are checked once.
 *
 * A cache folder holds the contents of files, which are linked into the states, because writing
 * them again would take most of the time. `take_back` removes a file from the cache if its time
 * of change shows that the check has changed it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "crash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"

enum { MAX_FDS = 4096, EMPTY = -1, ROOT = 0, PATH_BYTES = 1024 };
enum { CACHE_BYTES = 32 << 20 };

/* ---- a recording ---- */

typedef struct node {
    bool   is_folder;
    char  *label; /* its first path; for messages */
    char  *bytes; /* its contents when the recording began */
    size_t n;
} node;

typedef struct slot {
    int   folder; /* a node */
    char *name;
    int first, now; /* nodes when the recording began, and at this moment of it; EMPTY: none */
} slot;

typedef enum op_kind { WRITE, TRUNCATE, NAME, SYNC, MARK } op_kind;

typedef struct op {
    op_kind kind;
    int node; /* file of WRITE, TRUNCATE; node of SYNC; of NAME: the slot's new node or EMPTY */
    int slot; /* of NAME */
    int after;      /* an operation without which this one has no effect; -1: none */
    int64_t offset; /* of WRITE; of TRUNCATE: the size */
    size_t  n;
    char   *bytes;
} op;

struct t_crash {
    pthread_mutex_t lock; /* threads may change files while the test sets a mark */
    char           *folder;
    int64_t         max_bytes, n_bytes;
    const char     *fault;          /* why the recording is incomplete; NULL: complete */
    int             of_fd[MAX_FDS]; /* nodes; EMPTY: not in the folder */
    int             n_nodes, n_slots, n_ops, n_syncs;
    node           *node;
    slot           *slot;
    op             *op;
};

static void *must(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

/* Returns `array` with room for element n, of `size` bytes. */
static void *grown(void *array, int n, size_t size)
{
    return n > 0 && (n & (n - 1)) != 0 ? array
                                       : must(realloc(array, (n > 0 ? 2 * n : 1) * size));
}

static int add_node(t_crash *c, bool is_folder, const char *label)
{
    c->node = grown(c->node, c->n_nodes, sizeof(*c->node));
    c->node[c->n_nodes] = (node){.is_folder = is_folder, .label = must(strdup(label))};
    return c->n_nodes++;
}

/* Returns the slot of a name in a folder. If there is none, adds an empty slot. */
static int slot_of(t_crash *c, int folder, const char *name, size_t n)
{
    for (int i = 0; i < c->n_slots; i++)
        if (c->slot[i].folder == folder && strncmp(c->slot[i].name, name, n) == 0 &&
            c->slot[i].name[n] == '\0')
            return i;
    c->slot = grown(c->slot, c->n_slots, sizeof(*c->slot));
    c->slot[c->n_slots] = (slot){folder, must(strndup(name, n)), EMPTY, EMPTY};
    return c->n_slots++;
}

static op *add_op(t_crash *c, op_kind kind)
{
    c->op = grown(c->op, c->n_ops, sizeof(*c->op));
    c->op[c->n_ops] = (op){.kind = kind, .node = EMPTY, .slot = EMPTY, .after = -1};
    return &c->op[c->n_ops++];
}

/* Returns the part of a path inside the recorded folder, or NULL if it lies outside. */
static const char *inside(const t_crash *c, const char *path)
{
    size_t n = strlen(c->folder);

    return strncmp(path, c->folder, n) == 0 && (path[n] == '/' || path[n] == '\0') ? path + n
                                                                                   : NULL;
}

/* Returns the slot of a path, or EMPTY for the recorded folder itself. Sets *is_known to false
 * if the path contains an unknown folder. */
static int find_slot(t_crash *c, const char *path, bool *is_known)
{
    int at = EMPTY, folder = ROOT;

    *is_known = true;
    for (path = inside(c, path); *path != '\0';) {
        size_t n = strcspn(path, "/");

        if (n > 0 && strncmp(path, ".", n) != 0) {
            if (at != EMPTY)
                folder = c->slot[at].now;
            if (folder == EMPTY || !c->node[folder].is_folder || strncmp(path, "..", n) == 0) {
                *is_known = false;
                return EMPTY;
            }
            at = slot_of(c, folder, path, n);
        }
        path += n + (path[n] == '/');
    }
    return at;
}

static void put_name(t_crash *c, int at, int child, int after)
{
    op *o = add_op(c, NAME);

    o->slot = at;
    o->node = c->slot[at].now = child;
    o->after = after;
}

static void on_open(t_crash *c, const ch_file_op *call)
{
    bool is_known;
    int  at, found;

    if (inside(c, call->path) == NULL)
        return;
    if ((call->flags & O_TMPFILE) == O_TMPFILE) {
        c->fault = "O_TMPFILE is not supported";
        return;
    }
    at = find_slot(c, call->path, &is_known);
    found = !is_known || at != EMPTY ? (is_known ? c->slot[at].now : EMPTY) : ROOT;
    if (found == EMPTY && (!is_known || (call->flags & O_CREAT) == 0)) {
        c->fault = "a file was opened that base/sys.h has not created";
        return;
    }
    if (found == EMPTY) {
        found = add_node(c, false, inside(c, call->path) + 1);
        put_name(c, at, found, -1);
    } else if ((call->flags & O_TRUNC) != 0) {
        add_op(c, TRUNCATE)->node = found;
    }
    c->of_fd[call->fd] = found;
}

static void on_write(t_crash *c, const ch_file_op *call, int file)
{
    op *o;

    c->n_bytes += (int64_t)call->n;
    if (c->n_bytes > c->max_bytes) {
        c->fault = "more bytes were written than the recording may keep";
        return;
    }
    o = add_op(c, WRITE);
    o->node = file;
    o->offset = call->offset;
    o->n = call->n;
    o->bytes = memcpy(must(malloc(call->n)), call->bytes, call->n);
}

/* Adds the operations of a rename, unlink, mkdir or rmdir. */
static void on_name(t_crash *c, const ch_file_op *call)
{
    bool is_known, is_to_known = true;
    int  at, to, child;

    if (inside(c, call->path) == NULL && (call->to == NULL || inside(c, call->to) == NULL))
        return;
    if (inside(c, call->path) == NULL || (call->to != NULL && inside(c, call->to) == NULL)) {
        c->fault = "a rename into or out of the folder is not supported";
        return;
    }
    at = find_slot(c, call->path, &is_known);
    to = call->to != NULL ? find_slot(c, call->to, &is_to_known) : EMPTY;
    if (!is_known || !is_to_known || at == EMPTY || (call->to != NULL && to == EMPTY)) {
        c->fault = "a name was changed in a folder that base/sys.h has not created";
        return;
    }
    child = c->slot[at].now;
    if (call->kind == CH_FILE_MKDIR) {
        put_name(c, at, add_node(c, true, inside(c, call->path) + 1), -1);
    } else if (child == EMPTY) {
        c->fault = "a name was changed that base/sys.h has not created";
    } else if (call->kind == CH_FILE_RENAME) {
        put_name(c, to, child, -1);
        put_name(c, at, EMPTY, c->n_ops - 1);
    } else {
        put_name(c, at, EMPTY, -1);
    }
}

static void add_call(t_crash *c, const ch_file_op *call)
{
    int file = EMPTY;

    if (call->path == NULL || call->kind == CH_FILE_OPEN) {
        if (call->fd >= MAX_FDS || (call->kind == CH_FILE_DUP && call->flags >= MAX_FDS)) {
            c->fault = "a descriptor is too large";
            return;
        }
        file = c->of_fd[call->fd];
    }
    switch (call->kind) {
    case CH_FILE_OPEN:
        c->of_fd[call->fd] = EMPTY;
        on_open(c, call);
        break;
    case CH_FILE_CLOSE:
        c->of_fd[call->fd] = EMPTY;
        break;
    case CH_FILE_DUP:
        c->of_fd[call->fd] = c->of_fd[call->flags];
        break;
    case CH_FILE_WRITE:
        if (file != EMPTY)
            on_write(c, call, file);
        break;
    case CH_FILE_TRUNCATE:
        if (file != EMPTY) {
            op *o = add_op(c, TRUNCATE);

            o->node = file;
            o->offset = call->offset;
        }
        break;
    case CH_FILE_SYNC:
        if (file != EMPTY) {
            add_op(c, SYNC)->node = file;
            c->n_syncs++;
        }
        break;
    case CH_FILE_RENAME:
    case CH_FILE_UNLINK:
    case CH_FILE_MKDIR:
    case CH_FILE_RMDIR:
        on_name(c, call);
        break;
    }
}

static void observe(void *arg, const ch_file_op *call)
{
    t_crash *c = arg;

    pthread_mutex_lock(&c->lock);
    add_call(c, call);
    pthread_mutex_unlock(&c->lock);
}

static void read_bytes(t_crash *c, int file, const char *path, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    c->node[file].bytes = must(malloc(n + 1));
    c->node[file].n = n;
    if (fd < 0 || read(fd, c->node[file].bytes, n) != (ssize_t)n)
        c->fault = "a file could not be read";
    if (fd >= 0)
        close(fd);
}

/* Adds the contents of a folder as they are now. */
static void read_folder(t_crash *c, int folder, const char *path)
{
    DIR *d = opendir(path);

    if (d == NULL) {
        c->fault = "a folder could not be read";
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char        full[PATH_BYTES];
        struct stat about;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(full, sizeof(full), "%s/%s", path, e->d_name);
        if (lstat(full, &about) != 0 || !(S_ISREG(about.st_mode) || S_ISDIR(about.st_mode))) {
            c->fault = "there is a link or device in the folder";
            continue;
        }
        int at = slot_of(c, folder, e->d_name, strlen(e->d_name));
        int child = add_node(c, S_ISDIR(about.st_mode), inside(c, full) + 1);
        c->slot[at].first = c->slot[at].now = child;
        if (S_ISDIR(about.st_mode))
            read_folder(c, child, full);
        else
            read_bytes(c, child, full, (size_t)about.st_size);
    }
    closedir(d);
}

t_crash *t_crash_record(const char *folder, int64_t max_bytes)
{
    t_crash *c = must(calloc(1, sizeof(*c)));

    pthread_mutex_init(&c->lock, NULL);
    c->folder = must(strdup(folder));
    c->max_bytes = max_bytes;
    for (int i = 0; i < MAX_FDS; i++)
        c->of_fd[i] = EMPTY;
    add_node(c, true, ".");
    read_folder(c, ROOT, folder);
    ch__file_observe(observe, c);
    return c;
}

void t_crash_mark(t_crash *c)
{
    pthread_mutex_lock(&c->lock);
    add_op(c, MARK);
    pthread_mutex_unlock(&c->lock);
}

void t_crash_stop(t_crash *c)
{
    ch__file_observe(NULL, NULL);
    if (c->fault != NULL)
        fail_msg("recording of %s: %s", c->folder, c->fault);
}

int t_crash_syncs(const t_crash *c)
{
    return c->n_syncs;
}

void t_crash_free(t_crash *c)
{
    for (int i = 0; i < c->n_nodes; i++) {
        free(c->node[i].label);
        free(c->node[i].bytes);
    }
    for (int i = 0; i < c->n_slots; i++)
        free(c->slot[i].name);
    for (int i = 0; i < c->n_ops; i++)
        free(c->op[i].bytes);
    free(c->node);
    free(c->slot);
    free(c->op);
    free(c->folder);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- a state ---- */

/* The part of an operation that the crash leaves. HEAD to BLOCKS apply to writes. */
typedef enum part {
    LOST,
    WHOLE,
    HEAD,   /* the bytes before `at` */
    TAIL,   /* the bytes from `at` on */
    LENGTH, /* no bytes, but the file has its new length */
    BLOCKS  /* some blocks of `at` bytes, by `seed` */
} part;

typedef struct choice {
    part     part;
    uint32_t at, seed;
} choice;

typedef struct state {
    const t_crash         *c;
    const t_crash_options *opt;
    t_crash_check          check;
    void                  *arg;
    uint64_t               random;
    int      *durable_at; /* for each operation, the sync that makes it durable; n_ops: none */
    choice   *choice;     /* for each operation */
    int      *in_slot;    /* the node in each slot, in this state */
    bool     *is_built;   /* for each folder; in this state */
    int       prefix;     /* number of operations before the crash */
    int      *pending, n_pending;
    uint64_t *node_hash; /* of the contents of each file */

    char      root[64]; /* holds `now`, the state, and `cache` */
    uint64_t *seen, n_seen, seen_size;
    uint64_t *cached, *used; /* hashes of files in the cache and in this state */
    int       n_cached, n_used;
    int64_t   cache_bytes;
    char     *bytes; /* contents of a file under construction */
    size_t    n, room;
    int64_t   n_states;
    bool      is_bad;
} state;

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u + 0x7f4a7c15;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

static uint32_t draw(state *s, uint32_t below)
{
    s->random = mix(s->random, 1);
    return (uint32_t)(s->random >> 16) % below;
}

/* ---- contents of files ---- */

static void extend(state *s, size_t n)
{
    if (n > s->room)
        s->bytes = must(realloc(s->bytes, s->room = 2 * n));
    if (n > s->n) {
        memset(s->bytes + s->n, 0, n - s->n);
        s->n = n;
    }
}

/* Copies bytes [from, to) of a write. */
static void copy(state *s, const op *o, size_t from, size_t to)
{
    if (from < to) {
        extend(s, (size_t)o->offset + to);
        memcpy(s->bytes + o->offset + from, o->bytes + from, to - from);
    }
}

static void apply_write(state *s, const op *o, choice k)
{
    switch (k.part) {
    case LOST:
        return;
    case WHOLE:
        copy(s, o, 0, o->n);
        return;
    case HEAD:
        copy(s, o, 0, k.at);
        return;
    case TAIL:
        copy(s, o, k.at, o->n);
        return;
    case LENGTH:
        extend(s, (size_t)o->offset + o->n);
        return;
    case BLOCKS:
        for (size_t from = 0; from < o->n;) {
            size_t to = from + k.at - ((size_t)o->offset + from) % k.at;

            to = to < o->n ? to : o->n;
            if (mix(k.seed, from) % 2 == 0)
                copy(s, o, from, to);
            from = to;
        }
    }
}

static void make_bytes(state *s, int file)
{
    s->n = 0;
    extend(s, s->c->node[file].n + 1);
    s->n = s->c->node[file].n;
    if (s->n > 0)
        memcpy(s->bytes, s->c->node[file].bytes, s->n);
    for (int i = 0; i < s->prefix; i++) {
        const op *o = &s->c->op[i];

        if (o->node != file || s->choice[i].part == LOST)
            continue;
        if (o->kind == WRITE)
            apply_write(s, o, s->choice[i]);
        if (o->kind == TRUNCATE) {
            extend(s, (size_t)o->offset);
            s->n = (size_t)o->offset;
        }
    }
}

static void cache_path(const state *s, uint64_t hash, char *path, size_t room)
{
    snprintf(path, room, "%s/cache/%016" PRIx64, s->root, hash);
}

static void forget(state *s, int i)
{
    char path[PATH_BYTES];

    cache_path(s, s->cached[i], path, sizeof(path));
    unlink(path);
    s->cached[i] = s->cached[--s->n_cached];
}

/* Puts a file with the contents of `file` in this state at `path`. */
static void find_cached(state *s, int file, char *path, size_t room)
{
    uint64_t        hash = s->node_hash[file];
    struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    int             fd;

    cache_path(s, hash, path, room);
    s->used = grown(s->used, s->n_used, sizeof(*s->used));
    s->used[s->n_used++] = hash;
    for (int i = s->n_cached - 1; i >= 0; i--)
        if (s->cached[i] == hash)
            return;
    make_bytes(s, file);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, s->bytes, s->n) != (ssize_t)s->n || futimens(fd, old) != 0)
        fail_msg("%s: %s", path, strerror(errno));
    close(fd);
    s->cached = grown(s->cached, s->n_cached, sizeof(*s->cached));
    s->cached[s->n_cached++] = hash;
    s->cache_bytes += (int64_t)s->n + 4096;
}

/* Removes from the cache the files that the check has changed, or all files if there are too
 * many. */
static void take_back(state *s)
{
    for (int i = 0; i < s->n_used; i++) {
        char        path[PATH_BYTES];
        struct stat about;

        cache_path(s, s->used[i], path, sizeof(path));
        if (stat(path, &about) == 0 && about.st_mtim.tv_sec == 1)
            continue;
        for (int k = s->n_cached - 1; k >= 0; k--)
            if (s->cached[k] == s->used[i])
                forget(s, k);
    }
    s->n_used = 0;
    if (s->cache_bytes < CACHE_BYTES && s->n_cached < 500)
        return;
    while (s->n_cached > 0)
        forget(s, s->n_cached - 1);
    s->cache_bytes = 0;
}

/* ---- the tree of a state ---- */

/* Sets in_slot, and node_hash of files. */
static void resolve(state *s)
{
    for (int i = 0; i < s->c->n_slots; i++)
        s->in_slot[i] = s->c->slot[i].first;
    for (int i = 0; i < s->c->n_nodes; i++)
        s->node_hash[i] = (uint64_t)i;
    for (int i = 0; i < s->prefix; i++) {
        const op *o = &s->c->op[i];
        choice    k = s->choice[i];

        if (k.part == LOST)
            continue;
        if (o->kind == WRITE || o->kind == TRUNCATE)
            s->node_hash[o->node] = mix(mix(s->node_hash[o->node], (uint64_t)i << 8 | k.part),
                                        k.part > WHOLE ? (uint64_t)k.at << 32 | k.seed : 0);
        if (o->kind == NAME)
            s->in_slot[o->slot] = o->node;
    }
}

/* Returns a hash of a folder in this state. If `path` is not NULL, builds it there. */
static uint64_t visit(state *s, int folder, const char *path)
{
    uint64_t hash = (uint64_t)folder + 1;

    s->is_built[folder] = true;
    if (path != NULL && mkdir(path, 0777) != 0)
        fail_msg("%s: %s", path, strerror(errno));
    for (int i = 0; i < s->c->n_slots; i++) {
        int  child = s->in_slot[i];
        char full[PATH_BYTES], from[PATH_BYTES];

        if (s->c->slot[i].folder != folder || child == EMPTY)
            continue;
        if (path != NULL)
            snprintf(full, sizeof(full), "%s/%s", path, s->c->slot[i].name);
        if (s->c->node[child].is_folder) {
            if (!s->is_built[child]) /* the second name of a renamed node */
                hash = mix(hash, mix((uint64_t)i, visit(s, child, path != NULL ? full : NULL)));
            continue;
        }
        hash = mix(hash, mix((uint64_t)i, s->node_hash[child]));
        if (path == NULL)
            continue;
        find_cached(s, child, from, sizeof(from));
        if (link(from, full) != 0)
            fail_msg("%s: %s", full, strerror(errno));
    }
    return hash;
}

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *at)
{
    (void)about;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_all(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Adds a hash. Returns false if it was there already. */
static bool add_seen(state *s, uint64_t hash)
{
    uint64_t at;

    if (2 * s->n_seen >= s->seen_size) {
        uint64_t *old = s->seen, n = s->seen_size;

        s->seen_size = n > 0 ? 2 * n : 1024;
        s->seen = must(calloc(s->seen_size, sizeof(*s->seen)));
        s->n_seen = 0;
        for (uint64_t i = 0; i < n; i++)
            if (old[i] != 0)
                add_seen(s, old[i]);
        free(old);
    }
    hash += hash == 0;
    for (at = hash % s->seen_size; s->seen[at] != 0; at = (at + 1) % s->seen_size)
        if (s->seen[at] == hash)
            return false;
    s->seen[at] = hash;
    s->n_seen++;
    return true;
}

static void print_op(const state *s, int i)
{
    static const char *const parts[] = {
        "lost",          "whole", "only bytes before", "only bytes from", "only its length",
        "some blocks of"};
    const op *o = &s->c->op[i];
    choice    k = s->choice[i];

    print_error("  %4d ", i);
    if (o->kind == NAME)
        print_error("%s/%s %s %s", s->c->node[s->c->slot[o->slot].folder].label,
                    s->c->slot[o->slot].name, o->node == EMPTY ? "is removed" : "is now",
                    o->node == EMPTY ? "" : s->c->node[o->node].label);
    else if (o->kind == WRITE)
        print_error("%s: write of %zu bytes at %lld", s->c->node[o->node].label, o->n,
                    (long long)o->offset);
    else if (o->kind == TRUNCATE)
        print_error("%s: truncated to %lld bytes", s->c->node[o->node].label,
                    (long long)o->offset);
    print_error(": %s", parts[k.part]);
    if (k.part == HEAD || k.part == TAIL || k.part == BLOCKS)
        print_error(" %u", k.at);
    print_error("\n");
}

static void print_state(const state *s, int n_marks)
{
    print_error("bad state %lld: crash after %d of %d operations and %d marks; pending:\n",
                (long long)s->n_states, s->prefix, s->c->n_ops, n_marks);
    for (int i = 0; i < s->n_pending; i++)
        print_op(s, s->pending[i]);
}

static bool is_enough(const state *s)
{
    return s->is_bad || (s->opt->states > 0 && s->n_states >= s->opt->states);
}

/* Builds and checks the state of `prefix` and `choice`, unless it was checked before. */
static void try_state(state *s)
{
    int  n_marks = 0;
    char path[PATH_BYTES];

    if (is_enough(s))
        return;
    for (int i = 0; i < s->prefix; i++) {
        const op *o = &s->c->op[i];

        n_marks += o->kind == MARK;
        if (o->after >= 0 && s->durable_at[i] >= s->prefix && s->choice[o->after].part == LOST)
            s->choice[i].part = LOST;
    }
    resolve(s);
    memset(s->is_built, 0, (size_t)s->c->n_nodes * sizeof(*s->is_built));
    if (!add_seen(s, mix(visit(s, ROOT, NULL), (uint64_t)n_marks)))
        return;
    memset(s->is_built, 0, (size_t)s->c->n_nodes * sizeof(*s->is_built));
    snprintf(path, sizeof(path), "%s/now", s->root);
    visit(s, ROOT, path);
    s->n_states++;
    s->is_bad = !s->check(s->arg, path, n_marks);
    if (s->is_bad && !s->opt->is_quiet)
        print_state(s, n_marks);
    remove_all(path);
    take_back(s);
}

/* ---- all states ---- */

static void choose_all(state *s, part p)
{
    for (int i = 0; i < s->n_pending; i++)
        s->choice[s->pending[i]] = (choice){.part = p};
}

/* Begins a prefix: durable operations are complete, all others are pending. */
static void set_prefix(state *s, int prefix)
{
    s->prefix = prefix;
    s->n_pending = 0;
    for (int i = 0; i < prefix; i++) {
        op_kind kind = s->c->op[i].kind;

        s->choice[i] = (choice){.part = WHOLE};
        if (kind != SYNC && kind != MARK && s->durable_at[i] >= prefix)
            s->pending[s->n_pending++] = i;
    }
}

/* Returns the n-th multiple of `unit` in a write as an offset in it, or 0 if there is none. */
static uint32_t cut_at(const op *o, uint32_t unit, uint32_t n)
{
    uint64_t at = (uint64_t)(n + 1) * unit - (uint64_t)o->offset % unit;

    return at < o->n ? (uint32_t)at : 0;
}

static uint32_t n_cuts(const op *o, uint32_t unit)
{
    uint64_t first = unit - (uint64_t)o->offset % unit;

    return first < o->n ? (uint32_t)((o->n - first - 1) / unit + 1) : 0;
}

static choice draw_torn(state *s, const op *o)
{
    uint32_t unit = draw(s, 2) == 0 ? 512 : 4096, n = n_cuts(o, unit);
    choice   k = {.part = n > 0 ? HEAD + draw(s, 4) : LENGTH};

    if (k.part == HEAD || k.part == TAIL)
        k.at = cut_at(o, unit, draw(s, n));
    if (k.part == BLOCKS)
        k = (choice){BLOCKS, unit, draw(s, 1u << 30)};
    return k;
}

/* A kind of states of a prefix. */
typedef void (*level)(state *s);

static void all_or_none(state *s)
{
    try_state(s);
    choose_all(s, LOST);
    try_state(s);
}

static void each_lost(state *s)
{
    for (int i = 0; i < s->n_pending; i++) {
        choose_all(s, WHOLE);
        s->choice[s->pending[i]].part = LOST;
        try_state(s);
    }
}

static void each_alone(state *s)
{
    for (int i = 0; i < s->n_pending; i++) {
        choose_all(s, LOST);
        s->choice[s->pending[i]].part = WHOLE;
        try_state(s);
    }
}

/* Tears each write at its first, middle and last boundary; all other operations are
 * complete. */
static void each_torn(state *s)
{
    for (int i = 0; i < s->n_pending; i++) {
        const op *o = &s->c->op[s->pending[i]];
        choice   *k = &s->choice[s->pending[i]];

        if (o->kind != WRITE)
            continue;
        choose_all(s, WHOLE);
        *k = (choice){.part = LENGTH};
        try_state(s);
        for (uint32_t unit = 512; unit <= 4096; unit *= 8) {
            uint32_t n = n_cuts(o, unit), cut[] = {0, n / 2, n - 1};

            for (uint32_t j = 0; j < 3 && n > 0; j++)
                for (part p = HEAD; p <= TAIL; p++) {
                    choose_all(s, WHOLE);
                    *k = (choice){p, cut_at(o, unit, cut[j]), 0};
                    try_state(s);
                }
            choose_all(s, WHOLE);
            *k = (choice){BLOCKS, unit, draw(s, 1u << 30)};
            if (n > 0)
                try_state(s);
        }
    }
}

static void random_subset(state *s)
{
    static const uint32_t share[] = {1, 4, 7}; /* eighths of the operations that are lost */
    uint32_t              lost = share[draw(s, 3)];

    for (int i = 0; i < s->n_pending; i++) {
        const op *o = &s->c->op[s->pending[i]];
        choice   *k = &s->choice[s->pending[i]];

        *k = (choice){.part = draw(s, 8) < lost ? LOST : WHOLE};
        if (o->kind == WRITE && draw(s, 4) == 0)
            *k = draw_torn(s, o);
    }
    try_state(s);
}

/* Applies a level to all prefixes, in an order whose beginning is spread over all of them. */
static void try_prefixes(state *s, level f)
{
    int64_t n = s->c->n_ops + 1, stride = n * 5 / 8 + 1;

    for (int64_t a = stride, b = n; b > 0;) { /* raises stride until it has no factor of n */
        int64_t rest = a % b;

        a = b;
        b = rest;
        if (b == 0 && a > 1) {
            a = ++stride;
            b = n;
        }
    }
    for (int64_t i = 0; i < n && !is_enough(s); i++) {
        set_prefix(s, (int)((i + 1) * stride % n));
        f(s);
    }
}

/* Sets durable_at: the first sync after an operation, of its file or of the folder of its name. */
static void find_syncs(state *s)
{
    const t_crash *c = s->c;

    for (int i = 0; i < c->n_ops; i++) {
        const op *o = &c->op[i];
        int       of = o->kind == NAME ? c->slot[o->slot].folder : o->node, nth = 0;

        s->durable_at[i] = c->n_ops;
        for (int k = 0; k < c->n_ops && s->durable_at[i] == c->n_ops; k++) {
            nth += c->op[k].kind == SYNC;
            if (k > i && c->op[k].kind == SYNC && c->op[k].node == of &&
                nth != s->opt->without_sync)
                s->durable_at[i] = k;
        }
    }
}

static void make_root(state *s)
{
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char        path[PATH_BYTES];

    snprintf(s->root, sizeof(s->root), "%s/cohort-crash-XXXXXX", parent);
    if (mkdtemp(s->root) == NULL)
        fail_msg("%s: %s", s->root, strerror(errno));
    snprintf(path, sizeof(path), "%s/cache", s->root);
    mkdir(path, 0777);
}

bool t_crash_run(const t_crash *c, const t_crash_options *opt, t_crash_check check, void *arg,
                 int64_t *n_states)
{
    static const level levels[] = {all_or_none, each_lost, each_alone, each_torn};
    size_t             n = (size_t)c->n_ops + 1;
    state   s = {.c = c, .opt = opt, .check = check, .arg = arg, .random = opt->seed};
    int64_t before = -1;

    s.durable_at = must(calloc(n, sizeof(*s.durable_at)));
    s.choice = must(calloc(n, sizeof(*s.choice)));
    s.pending = must(calloc(n, sizeof(*s.pending)));
    s.in_slot = must(calloc((size_t)c->n_slots + 1, sizeof(*s.in_slot)));
    s.is_built = must(calloc((size_t)c->n_nodes, sizeof(*s.is_built)));
    s.node_hash = must(calloc((size_t)c->n_nodes, sizeof(*s.node_hash)));
    make_root(&s);
    find_syncs(&s);
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        try_prefixes(&s, levels[i]);
    /* until many rounds have found no new state */
    for (int idle = 0; opt->states > 0 && idle < 300 && !is_enough(&s); idle++) {
        before = s.n_states;
        try_prefixes(&s, random_subset);
        idle = s.n_states > before ? -1 : idle;
    }
    remove_all(s.root);
    if (n_states != NULL)
        *n_states = s.n_states;
    free(s.durable_at);
    free(s.choice);
    free(s.pending);
    free(s.in_slot);
    free(s.is_built);
    free(s.node_hash);
    free(s.seen);
    free(s.cached);
    free(s.used);
    free(s.bytes);
    return !s.is_bad;
}

bool t_crash_misses_syncs(const t_crash *c, const t_crash_options *opt, t_crash_check check,
                          void *arg)
{
    bool misses_all = true;

    for (int i = 1; i <= c->n_syncs; i++) {
        t_crash_options without = *opt;

        without.without_sync = i;
        without.is_quiet = true;
        if (t_crash_run(c, &without, check, arg, NULL)) {
            print_error("sync %d of %d is not missed\n", i, c->n_syncs);
            misses_all = false;
        }
    }
    return misses_all;
}

int64_t t_crash_states(int64_t otherwise)
{
    const char *text = getenv("T_STATES");

    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}
