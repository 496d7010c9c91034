/* tensor/device.c -- the devices of this process.
 *
 * A `plan` is a parsed configuration: the types and numbers of devices. The `table` is created
 * from a plan, once, on first use or by ch_devices_configure. A `task_device` is a device of
 * another task that runs in this process; it is not in the table. Callers are the public
 * functions of cohort/device.h, tensors (memory) and graph/ (teams and workspaces).
 *
 * Invariants:
 *   1. `current` changes only under table_lock, from NULL to a table. Only ch__devices_reset,
 *      for tests, sets it back to NULL. It is read without the lock.
 *   2. A table does not change. Only the parts of a device change, each under its own
 *      lock (devices.h).
 *   3. Task devices are only added, under table_lock, and live as long as the process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/device.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/devices.h"
#include "tensor/print.h"

enum {
    MAX_TYPES = 16,
    MAX_DEVICES = 1024,
    MAX_ENTERED = 64,
    LISTED_DEVICES = 8,  /* maximum number of devices in an error message */
    DEFAULT_DEVICES = 8, /* maximum number of devices without a configuration */
};

typedef struct plan_row {
    char type[sizeof(((ch_device_spec *)0)->type)];
    int  n;
} plan_row;

typedef struct plan {
    char     job[sizeof(((ch_device_spec *)0)->job)];
    int      task;
    int      n_threads; /* of each device */
    int64_t  memory;    /* bytes of each device; 0: no limit */
    int      n_cores;   /* of the process */
    int      n_devices;
    int      n_rows;
    plan_row row[MAX_TYPES]; /* one per type; CPU is the first */
} plan;

typedef struct table {
    plan      plan;
    unsigned  generation; /* differs from that of every earlier table */
    ch_device device[];
} table;

/* A device of another task that runs in this process. Task devices form a list. */
typedef struct task_device {
    struct task_device *next;
    ch_device           device;
} task_device;

static pthread_mutex_t  table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(table *) current;  /* written under table_lock, read without it */
static unsigned         n_tables; /* tables created so far; under table_lock, as all below */
static task_device     *task_devices;
static int              n_task_devices;

static atomic_bool    forked;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* The devices that this thread has entered, of the table with this generation. */
static _Thread_local struct {
    unsigned   generation;
    int        depth;
    ch_device *device[MAX_ENTERED];
} entered;

static ch_status spec_fail(const char *spec, const char *why)
{
    return ch__fail(CH_INVALID_ARGUMENT,
                    "devices \"%s\": %s; want TYPE=COUNT, separated by commas, such as "
                    "\"CPU=2,GPU=4\"",
                    spec, why);
}

static plan_row *plan_find(plan *p, const char *type)
{
    for (int i = 0; i < p->n_rows; i++)
        if (strcmp(p->row[i].type, type) == 0)
            return &p->row[i];
    return NULL;
}

/* Parses a row such as "GPU=4" at *at and advances *at. */
static ch_status row_parse(const char *spec, const char **at, plan_row *out)
{
    plan_row    row = {.n = 0};
    const char *c = *at;
    size_t      n = 0;

    for (; isalnum((unsigned char)*c) || *c == '_'; c++) {
        if (n + 1 >= sizeof(row.type))
            return spec_fail(spec, "a type is too long");
        row.type[n++] = (char)toupper((unsigned char)*c);
    }
    if (n == 0 || isdigit((unsigned char)row.type[0]))
        return spec_fail(spec, "a type is missing");
    if (*c++ != '=')
        return spec_fail(spec, "a type has no \"=\" after it");
    if (!isdigit((unsigned char)*c))
        return spec_fail(spec, "a count is missing");
    for (; isdigit((unsigned char)*c); c++) {
        row.n = row.n * 10 + (*c - '0');
        if (row.n > MAX_DEVICES)
            return spec_fail(spec, "more than 1024 devices");
    }
    if (*c != ',' && *c != '\0')
        return spec_fail(spec, "unexpected text after a count");
    if (*c == ',' && *++c == '\0')
        return spec_fail(spec, "nothing follows the last comma");
    *at = c;
    *out = row;
    return CH_OK;
}

/* Fills the rows, CPU first. There is at least one CPU device, even if the text has none. */
static ch_status plan_parse(plan *p, const char *spec)
{
    p->n_rows = 1;
    p->row[0] = (plan_row){.type = "CPU"};
    for (const char *at = spec; *at != '\0';) {
        plan_row  row;
        ch_status st = row_parse(spec, &at, &row);

        if (st != CH_OK)
            return st;
        plan_row *same = plan_find(p, row.type);
        if (same != NULL && (same != &p->row[0] || same->n > 0))
            return spec_fail(spec, "a type occurs twice");
        if (same == NULL && p->n_rows == MAX_TYPES)
            return spec_fail(spec, "there are more than 16 types");
        *(same != NULL ? same : &p->row[p->n_rows++]) = row;
    }
    if (p->row[0].n == 0)
        p->row[0].n = 1;
    for (int i = 0; i < p->n_rows; i++)
        p->n_devices += p->row[i].n;
    return p->n_devices <= MAX_DEVICES ? CH_OK : spec_fail(spec, "more than 1024 devices");
}

/* Makes a plan from `spec`; "" means a CPU device for each core, at most DEFAULT_DEVICES. */
static ch_status plan_make(const ch_devices_options *opt, const char *spec, plan *out)
{
    const char *job = opt->job != NULL ? opt->job : "localhost";
    int         cores = ch__cpu_count();
    plan        p = {.task = opt->task, .n_cores = cores};

    if (strlen(job) >= sizeof(p.job) || job[0] == '\0' || strpbrk(job, "/:") != NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "devices: invalid job name \"%s\"; want 1 to %zu bytes without / and :",
                        job, sizeof(p.job) - 1);
    if (opt->task < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "devices: task %d is negative", opt->task);
    if (opt->threads < 0 || opt->threads > CH_MAX_THREADS)
        return ch__fail(CH_INVALID_ARGUMENT, "devices: got %d threads per device, want 0 to %d",
                        opt->threads, CH_MAX_THREADS);
    memcpy(p.job, job, strlen(job) + 1);
    if (spec[0] == '\0') {
        p.n_devices = cores < DEFAULT_DEVICES ? cores : DEFAULT_DEVICES;
        p.n_rows = 1;
        p.row[0] = (plan_row){.type = "CPU", .n = p.n_devices};
    } else {
        ch_status st = plan_parse(&p, spec);

        if (st != CH_OK)
            return st;
    }
    p.memory = opt->memory_bytes > 0 ? (int64_t)opt->memory_bytes : ch__config()->device_memory;
    p.n_threads = opt->threads > 0 ? opt->threads : ch__config()->threads;
    if (p.n_threads <= 0)
        p.n_threads = cores > p.n_devices ? cores / p.n_devices : 1;
    *out = p;
    return CH_OK;
}

static bool plan_equal(const plan *a, const plan *b)
{
    if (strcmp(a->job, b->job) != 0 || a->task != b->task || a->n_threads != b->n_threads ||
        a->memory != b->memory || a->n_rows != b->n_rows)
        return false;
    for (int i = 0; i < a->n_rows; i++)
        if (strcmp(a->row[i].type, b->row[i].type) != 0 || a->row[i].n != b->row[i].n)
            return false;
    return true;
}

static int64_t read_bytes(void *device)
{
    return ch__counter_sum(&((const ch_device *)device)->bytes);
}

static void device_init(ch_device *d, const plan *p, int ordinal, const plan_row *row,
                        int index)
{
    pthread_mutex_init(&d->hold, NULL);
    pthread_mutex_init(&d->start, NULL);
    d->ordinal = ordinal;
    d->n_threads = p->n_threads;
    d->limit = p->memory;
    d->n_cores = p->n_cores;
    d->where = (ch_device_spec){.task = p->task, .index = index};
    memcpy(d->where.job, p->job, sizeof(p->job));
    memcpy(d->where.type, row->type, sizeof(row->type));
    ch_device_spec_print(&d->where, d->name, sizeof(d->name));
    d->bytes_row = (ch_counter_row){.name = "device_bytes",
                                    .unit = "bytes",
                                    .help = "memory of tensors and programs in use on a device",
                                    .label = d->name,
                                    .read = read_bytes,
                                    .arg = d};
    ch__counter_row_add(&d->bytes_row);
}

static void after_fork(void)
{
    if (atomic_load(&current) != NULL)
        atomic_store(&forked, true);
}

static void install_fork_handler(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/* Creates the table. The caller must hold table_lock. */
static ch_status table_make(const plan *p)
{
    table *t = ch__alloc_aligned(sizeof(*t) + (size_t)p->n_devices * sizeof(t->device[0]));
    int    n = 0;

    if (t == NULL)
        return ch__fail_memory("devices of this process");
    t->plan = *p;
    t->generation = ++n_tables;
    for (int i = 0; i < p->n_rows; i++)
        for (int k = 0; k < p->row[i].n; k++, n++)
            device_init(&t->device[n], p, n, &p->row[i], k);
    pthread_once(&fork_once, install_fork_handler);
    atomic_store_explicit(&current, t, memory_order_release);
    return CH_OK;
}

/* Creates the table from the settings, if the program has not configured devices. An invalid
 * setting is logged and ignored, because the callers (such as ch_device_count) cannot return an
 * error. */
static ch_status table_default(void)
{
    static const ch_devices_options none;
    plan                            p;
    ch_status                       st = plan_make(&none, ch__config()->devices, &p);

    if (st == CH_INVALID_ARGUMENT) {
        ch__log(CH_LOG_WARNING, "devices", "COHORT_DEVICES is ignored: %s", ch_error_message());
        st = plan_make(&none, "", &p);
    }
    return st == CH_OK ? table_make(&p) : st;
}

/* Returns the table and creates it if necessary. Returns NULL and sets the message if memory is
 * exhausted. */
static table *table_get(void)
{
    table *t = atomic_load_explicit(&current, memory_order_acquire);

    if (t != NULL)
        return t;
    pthread_mutex_lock(&table_lock);
    if (atomic_load(&current) != NULL || table_default() == CH_OK)
        t = atomic_load(&current);
    pthread_mutex_unlock(&table_lock);
    return t;
}

ch_status ch_devices_configure(const ch_devices_options *opt)
{
    static const ch_devices_options none;
    plan                            p;

    if (opt == NULL)
        opt = &none;
    ch_status st = plan_make(opt, opt->spec != NULL ? opt->spec : ch__config()->devices, &p);
    if (st != CH_OK)
        return st;
    pthread_mutex_lock(&table_lock);
    table *t = atomic_load(&current);
    if (t == NULL)
        st = table_make(&p);
    else if (!plan_equal(&t->plan, &p))
        st = ch__fail(CH_FAILED_PRECONDITION,
                      "devices configure: this process already has other devices (%d, from %s "
                      "on); call it before the first tensor, variable or strategy is created",
                      t->plan.n_devices, t->device[0].name);
    pthread_mutex_unlock(&table_lock);
    return st;
}

static bool spec_equal(const ch_device_spec *a, const ch_device_spec *b)
{
    return strcmp(a->job, b->job) == 0 && a->replica == b->replica && a->task == b->task &&
           strcmp(a->type, b->type) == 0 && a->index == b->index;
}

/* Adds a task device. The caller must hold table_lock. */
static ch_status task_device_add(const ch_device_spec *where, task_device **out)
{
    plan         p = {.task = where->task, .n_threads = 1, .n_cores = ch__cpu_count()};
    plan_row     row = {.type = "CPU"};
    task_device *d = ch__alloc_aligned(sizeof(*d));

    if (d == NULL)
        return ch__fail_memory("task device");
    memcpy(p.job, where->job, sizeof(p.job));
    device_init(&d->device, &p, MAX_DEVICES + n_task_devices++, &row, where->index);
    d->next = task_devices;
    task_devices = *out = d;
    return CH_OK;
}

ch_status ch__device_of_task(const char *job, int task, int index, ch_device **out)
{
    ch_device_spec where = {.task = task, .type = "CPU", .index = index};
    task_device   *d;
    ch_status      rc = CH_OK;

    if (table_get() == NULL) /* also installs the fork handler */
        return CH_RESOURCE_EXHAUSTED;
    (void)snprintf(where.job, sizeof(where.job), "%s", job);
    pthread_mutex_lock(&table_lock);
    for (d = task_devices; d != NULL && !spec_equal(&d->device.where, &where);)
        d = d->next;
    if (d == NULL)
        rc = task_device_add(&where, &d);
    pthread_mutex_unlock(&table_lock);
    if (rc == CH_OK)
        *out = &d->device;
    return rc;
}

static void device_drop(ch_device *d)
{
    ch__counter_row_remove(&d->bytes_row);
    ch__device_stop(d);
    ch__team_free(d->team);
    ch__device_free(d, d->workspace.base, d->workspace.bytes);
    pthread_mutex_destroy(&d->hold);
    pthread_mutex_destroy(&d->start);
}

void ch__devices_reset(void)
{
    pthread_mutex_lock(&table_lock);
    table *t = atomic_load(&current);

    /* All device threads must end before the table is freed, because a thread that has just
     * started reads the table (device_serve). */
    while (task_devices != NULL) {
        task_device *d = task_devices;

        task_devices = d->next;
        device_drop(&d->device);
        ch__free_aligned(d);
    }
    n_task_devices = 0;
    for (int i = 0; t != NULL && i < t->plan.n_devices; i++)
        device_drop(&t->device[i]);
    atomic_store(&current, NULL);
    ch__free_aligned(t);
    pthread_mutex_unlock(&table_lock);
}

ch_status ch__devices_check_fork(const char *what)
{
    if (!atomic_load_explicit(&forked, memory_order_relaxed))
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "%s: this process was forked after its devices were created, and their threads "
        "are in the parent; fork before the first use of a device, or exec",
        what);
}

bool ch__devices_have_type(const char *type)
{
    table *t = atomic_load_explicit(&current, memory_order_acquire);

    for (int i = 0; t != NULL && i < t->plan.n_rows; i++)
        if (strcasecmp(t->plan.row[i].type, type) == 0)
            return true;
    return false;
}

int ch_device_count(const char *type)
{
    table *t = table_get();

    if (t == NULL)
        return 0;
    if (type == NULL)
        return t->plan.n_devices;
    for (int i = 0; i < t->plan.n_rows; i++)
        if (strcasecmp(t->plan.row[i].type, type) == 0)
            return t->plan.row[i].n;
    return 0;
}

ch_device *ch_device_at(int i)
{
    table *t = table_get();

    return t != NULL && i >= 0 && i < t->plan.n_devices ? &t->device[i] : NULL;
}

/* Returns true if a setting could give this process the wanted device. */
static bool is_possible(const table *t, const ch_device_spec *wanted)
{
    return strcmp(wanted->job, t->plan.job) == 0 && wanted->task == t->plan.task &&
           wanted->index >= 0 && wanted->index < MAX_DEVICES;
}

/* Returns the number of devices of a type that are needed for the wanted devices, at least
 * `n_devices`. */
static int count_wanted(const table *t, int n, const ch_device_spec *wanted, const char *type,
                        int n_devices)
{
    for (int i = 0; i < n; i++)
        if (is_possible(t, &wanted[i]) && strcasecmp(wanted[i].type, type) == 0 &&
            wanted[i].index >= n_devices)
            n_devices = wanted[i].index + 1;
    return n_devices;
}

/* Writes the setting that gives this process the wanted devices in addition to its own, such as
 * "CPU=2,GPU=4". */
static void print_setting(const table *t, int n, const ch_device_spec *wanted, ch_text *o)
{
    for (int i = 0; i < t->plan.n_rows; i++)
        ch__text_add(o, "%s%s=%d", i > 0 ? "," : "", t->plan.row[i].type,
                     count_wanted(t, n, wanted, t->plan.row[i].type, t->plan.row[i].n));
    for (int i = 0; i < n; i++)
        if (ch_device_count(wanted[i].type) == 0 &&
            count_wanted(t, i, wanted, wanted[i].type, 0) == 0 && is_possible(t, &wanted[i]))
            ch__text_add(o, ",%s=%d", wanted[i].type,
                         count_wanted(t, n, wanted, wanted[i].type, 0));
}

/* Fails because a wanted device does not exist. Lists the existing devices and, if possible, a
 * setting. */
static ch_status fail_no_device(const table *t, int n_wanted, const ch_device_spec *wanted,
                                const ch_device_spec *missing)
{
    char    name[CH_DEVICE_NAME], list[CH_FAULT_TEXT / 2], setting[CH_FAULT_TEXT / 4];
    ch_text devices = ch__text(list, sizeof(list)), s = ch__text(setting, sizeof(setting));
    int     n = t->plan.n_devices, shown = n <= LISTED_DEVICES ? n : LISTED_DEVICES;

    for (int i = 0; i < shown; i++)
        ch__text_add(&devices, "%s%s", i > 0 ? ", " : "", t->device[i].name);
    if (shown < n)
        ch__text_add(&devices, " and %d more", n - shown);
    ch_device_spec_print(missing, name, sizeof(name));
    if (!is_possible(t, missing))
        return ch__fail(CH_INVALID_ARGUMENT, "device find: there is no %s; there are %s", name,
                        list);
    print_setting(t, n_wanted, wanted, &s);
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "device find: there is no %s; there are %s; for virtual devices over this "
        "machine's cores, set COHORT_DEVICES=%s, or call ch_devices_configure before the "
        "first use of a device",
        name, list, setting);
}

static ch_device *find_device(table *t, const ch_device_spec *wanted)
{
    for (int i = 0; i < t->plan.n_devices; i++)
        if (spec_equal(&t->device[i].where, wanted))
            return &t->device[i];
    return NULL;
}

/* Finds n devices by name. `wanted` has room for n specs. */
static ch_status find_devices(int n, const char *const *name, ch_device_spec *wanted,
                              ch_device **out)
{
    table    *t = table_get();
    ch_status rc = t == NULL ? CH_RESOURCE_EXHAUSTED : CH_OK;

    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = ch__check_not_null("device find", "the name", name[i], "out", out);
        if (rc == CH_OK)
            rc = ch__device_spec_over(&ch_device_current()->where, name[i], &wanted[i]);
    }
    for (int i = 0; i < n && rc == CH_OK; i++) {
        ch_device *d = find_device(t, &wanted[i]);

        if (d == NULL)
            rc = fail_no_device(t, n, wanted, &wanted[i]);
        else
            out[i] = d;
    }
    return rc;
}

ch_status ch_device_find(const char *name, ch_device **out)
{
    ch_device_spec wanted;

    return find_devices(1, &name, &wanted, out);
}

ch_status ch__devices_find(int n, const char *const *name, ch_device **out)
{
    ch_device_spec *wanted = ch__calloc((size_t)n + 1, sizeof(*wanted));
    ch_status       rc = wanted == NULL ? ch__fail_memory("list of devices") : CH_OK;

    if (rc == CH_OK)
        rc = find_devices(n, name, wanted, out);
    ch__free(wanted);
    return rc;
}

const char *ch_device_name(const ch_device *d)
{
    return d != NULL ? d->name : NULL;
}

const char *ch__device_short_name(const ch_device *d)
{
    const char *last = strstr(d->name, "device:");

    return last != NULL ? last + strlen("device:") : d->name;
}

const ch_device_spec *ch_device_where(const ch_device *d)
{
    return d != NULL ? &d->where : NULL;
}

int ch_device_threads(const ch_device *d)
{
    return d != NULL ? d->n_threads : 0;
}

size_t ch_device_peak_bytes(const ch_device *d)
{
    return d != NULL ? (size_t)atomic_load(&d->peak) : 0;
}

size_t ch_device_bytes(const ch_device *d)
{
    return d != NULL ? (size_t)ch__counter_sum(&d->bytes) : 0;
}

int ch__device_ordinal(const ch_device *d)
{
    return d->ordinal;
}

/* Returns the table. If it is not the table whose devices this thread has entered, leaves them
 * all. */
static table *entered_table(void)
{
    table *t = table_get();

    if (t != NULL && entered.generation != t->generation) {
        entered.generation = t->generation;
        entered.depth = 0;
    }
    return t;
}

ch_status ch_device_enter(ch_device *d)
{
    if (d == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "device enter: the device is NULL");
    if (entered_table() == NULL)
        return CH_RESOURCE_EXHAUSTED;
    if (entered.depth == MAX_ENTERED)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "device enter: %s: would be nested %d deep; call ch_device_leave first",
                        d->name, MAX_ENTERED + 1);
    entered.device[entered.depth++] = d;
    return CH_OK;
}

void ch_device_leave(void)
{
    if (entered_table() != NULL && entered.depth > 0)
        entered.depth--;
}

int ch__device_depth(void)
{
    return entered_table() != NULL ? entered.depth : 0;
}

ch_device *ch_device_current(void)
{
    table *t = entered_table();

    if (t == NULL)
        return NULL;
    return entered.depth > 0 ? entered.device[entered.depth - 1] : &t->device[0];
}

static void *count_block(ch_device *d, void *p, size_t bytes)
{
    if (p != NULL)
        ch__counter_add(&d->bytes, (int64_t)bytes);
    return p;
}

/* Allocates at least a byte, so that a pointer to data is never NULL. */
void *ch__device_alloc(ch_device *d, size_t bytes)
{
    return count_block(d, ch__alloc_aligned(bytes > 0 ? bytes : 1), bytes);
}

void *ch__device_alloc_untouched(ch_device *d, size_t bytes)
{
    return count_block(d, ch__alloc_untouched(bytes > 0 ? bytes : 1), bytes);
}

void ch__device_free(ch_device *d, void *p, size_t bytes)
{
    if (p == NULL)
        return;
    ch__free_aligned(p);
    ch__counter_add(&d->bytes, -(int64_t)bytes);
}

/* Adds to the reserved bytes and updates their peak. Returns the sum. */
static int64_t take_reserved(ch_device *d, int64_t bytes)
{
    int64_t now = atomic_fetch_add(&d->reserved, bytes) + bytes, peak = atomic_load(&d->peak);

    while (now > peak && (d->limit == 0 || now <= d->limit) &&
           !atomic_compare_exchange_weak(&d->peak, &peak, now))
        ;
    return now;
}

ch_status ch__device_reserve(ch_device *d, size_t bytes, const char *what)
{
    int64_t now = take_reserved(d, (int64_t)bytes);

    if (d->limit == 0 || now <= d->limit)
        return CH_OK;
    atomic_fetch_sub(&d->reserved, (int64_t)bytes);
    return ch__fail_limit("%s: no memory for %zu bytes on %s: %zu of its %zu bytes are in use "
                          "(memory_bytes, or COHORT_DEVICE_MEMORY)",
                          what, bytes, ch__device_short_name(d), (size_t)now - bytes,
                          (size_t)d->limit);
}

void ch__device_reserve_again(ch_device *d, size_t bytes)
{
    (void)take_reserved(d, (int64_t)bytes);
}

void ch__device_unreserve(ch_device *d, size_t bytes)
{
    atomic_fetch_sub(&d->reserved, (int64_t)bytes);
}

size_t ch__device_reserved(const ch_device *d)
{
    return (size_t)atomic_load(&d->reserved);
}

size_t ch__device_workspace_bytes(const ch_device *d)
{
    return d->workspace.bytes;
}

size_t ch__device_limit(const ch_device *d)
{
    return (size_t)d->limit;
}

/* Frees the old block before allocating the new one, so that both need not fit into memory. The
 * contents are not kept. */
ch_status ch__device_workspace(ch_device *d, size_t bytes, bool touches_part, ch_workspace *out)
{
    ch_workspace *w = &d->workspace;

    if (w->base == NULL || w->bytes < bytes) {
        unsigned  generation = w->generation + 1;
        ch_status rc = ch__device_reserve(d, bytes - w->bytes, "workspace");

        if (rc != CH_OK)
            return rc;
        ch__device_free(d, w->base, w->bytes);
        *w = (ch_workspace){.generation = generation};
        w->base =
            touches_part ? ch__device_alloc_untouched(d, bytes) : ch__device_alloc(d, bytes);
        if (w->base == NULL) {
            ch__device_unreserve(d, bytes);
            return ch__fail(CH_RESOURCE_EXHAUSTED,
                            "workspace of %s: out of memory (requested %zu bytes, %zu bytes "
                            "are in use there)",
                            d->name, bytes, ch_device_bytes(d));
        }
        w->bytes = bytes;
    }
    *out = *w;
    return CH_OK;
}

void ch__device_workspace_free(ch_device *d)
{
    ch_workspace *w = &d->workspace;

    ch__devices_hold(1, &d);
    ch__device_free(d, w->base, w->bytes);
    ch__device_unreserve(d, w->bytes);
    *w = (ch_workspace){.generation = w->generation + 1};
    ch__devices_release(1, &d);
}

void ch__devices_hold(int n, ch_device *const *device)
{
    int before = -1;

    for (int k = 0; k < n; k++) {
        ch_device *next = NULL;

        for (int i = 0; i < n; i++)
            if (device[i]->ordinal > before &&
                (next == NULL || device[i]->ordinal < next->ordinal))
                next = device[i];
        assert(next != NULL); /* the devices are distinct */
        before = next->ordinal;
        pthread_mutex_lock(&next->hold);
    }
}

void ch__devices_release(int n, ch_device *const *device)
{
    for (int i = 0; i < n; i++)
        pthread_mutex_unlock(&device[i]->hold);
}
