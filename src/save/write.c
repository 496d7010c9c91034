/* save/write.c -- writes the files of a save in the background.
 *
 * The background thread plans the variables on servers (ch__save_plan_finish), and writes the
 * data files, at most CH_WRITE_THREADS at a time, then the index, which commits the checkpoint.
 * Then it calls `committed`. After an error no file is left.
 *
 * Bytes on a parameter server are read in windows: a window is a part of an item, of at most
 * WINDOW bytes or a row, that is read from the snapshot at once. Changed rows that do not fit
 * into staging memory are gathered in the same window, as many as the writer asks for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/write.h"

#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/mutant.h"
#include "strategy/changed_rows.h"

enum { WINDOW = 16 << 20 }; /* bytes */

/* A data file that is being written. */
typedef struct file_write {
    ch_save *save;
    int      file;
    /* Bytes [from, from + n) of item `item`. */
    int     item;
    int64_t from, n;
    char   *window;
    int64_t capacity;
} file_write;

static void set_past_vars(ch_save *s)
{
    if (!atomic_exchange(&s->is_past_vars, true))
        ch__gate_open(&s->gate);
}

/* Makes room for n bytes. */
static ch_status reserve_window(file_write *w, int64_t n)
{
    char *grown;

    if (n <= w->capacity)
        return CH_OK;
    grown = ch__realloc(w->window, (size_t)n);
    if (grown == NULL)
        return ch__fail_memory("the window on the values of a checkpoint");
    w->window = grown;
    w->capacity = n;
    return CH_OK;
}

/* Gathers bytes [from, from + n) of item i, which consists of rows of a variable. */
static ch_status gather(file_write *w, int i, int64_t from, int64_t n)
{
    ch_status rc = reserve_window(w, n);

    if (rc != CH_OK)
        return rc;
    ch__save_plan_copy(&w->save->plan, i, from, n, w->window);
    w->item = i;
    w->from = from;
    w->n = n;
    return CH_OK;
}

/* Reads rows [first, first + count) of item i from the snapshot. */
static ch_status read_rows(const ch_save *s, int i, int64_t first, int64_t count, char *to)
{
    const ch_item_source *source = &s->plan.source[i];
    const ch_ckpt_item   *x = &s->plan.item[i];
    const ch_cut         *cut = ch__save_cut_of(s->n_cuts, s->cut, source->var);
    ch_region             region = x->region;

    if (source->rows != NULL)
        return ch__cut_read_rows(cut, source->var, count, source->rows + first, to);
    if (x->whole.rank > 0) {
        region.begin[0] += first;
        region.size[0] = count;
    }
    return ch__cut_read(cut, source->var, &region, to);
}

/* Moves the window so that it contains bytes [from, from + n) of item i, which is on a server.
 * The writer asks for ascending bytes, so bytes before `from` are not needed any more. */
static ch_status move_window(file_write *w, int i, int64_t from, int64_t n)
{
    const ch_ckpt_item *x = &w->save->plan.item[i];
    int64_t             rows = x->whole.rank > 0 ? x->region.size[0] : 1;
    int64_t             row = x->bytes / rows, end = w->from + w->n;

    if (w->item != i) {
        w->item = i;
        end = 0;
    }
    if (from < end)
        memmove(w->window, w->window + (from - w->from), (size_t)(end - from));
    w->n = end > from ? end - from : 0;
    w->from = from < end ? from : end;

    /* Whole rows are read, and the window begins with a row or with kept bytes. */
    int64_t   first = end / row, count = ch__units(from + n, row) - first;
    int64_t   more = ch__min(rows - first, WINDOW / row);
    ch_status rc;

    count = count > more ? count : more;
    rc = reserve_window(w, w->n + count * row);
    if (rc == CH_OK)
        rc = read_rows(w->save, i, first, count, w->window + w->n);
    w->n += count * row;
    return rc;
}

static ch_status check_abandoned(ch_save *s)
{
    return atomic_load(&s->is_abandoned)
               ? ch__fail(CH_CANCELLED, "checkpoint: %s: the save was abandoned", s->prefix)
               : CH_OK;
}

static ch_status fetch(void *arg, int i, int64_t from, int64_t n, const void **bytes)
{
    file_write           *w = arg;
    ch_save              *s = w->save;
    int                   item = s->plan.first[w->file] + i;
    const ch_item_source *source = &s->plan.source[item];
    ch_status             rc = CH_OK;

    rc = check_abandoned(s);
    if (rc != CH_OK)
        return rc;
    if (w->file == 0 && source->from != CH_FROM_VAR)
        set_past_vars(s);
    switch (source->from) {
    case CH_FROM_VAR:
        if (source->rows != NULL)
            rc = gather(w, item, from, n);
        *bytes = source->rows != NULL ? w->window : source->bytes + from;
        break;
    case CH_FROM_TENSOR:
    case CH_FROM_IDS:
        *bytes = source->bytes + from;
        break;
    case CH_FROM_STAGING:
        *bytes = s->staging->at + ch__save_plan_staged_at(&s->plan, item) + from;
        break;
    case CH_FROM_SNAPSHOT:
        if (w->item != item || from + n > w->from + w->n)
            rc = move_window(w, item, from, n);
        if (rc == CH_OK)
            *bytes = w->window + (from - w->from);
        break;
    }
    atomic_fetch_add(&s->written, n);
    return rc;
}

void ch__write_memory_drop(ch_write_memory *m)
{
    for (int i = 0; i < CH_WRITE_THREADS; i++) {
        ch__free(m->of[i].buffer);
        ch__free(m->of[i].window);
    }
    *m = (ch_write_memory){.of = {{.buffer = NULL}}};
}

/* Takes buffers for a file. There are as many as threads, so some are free. NULL: out of
 * memory. */
static struct ch_write_buffers *take_buffers(ch_write_memory *m)
{
    int i = 0;

    while (atomic_exchange(&m->of[i].is_taken, true))
        i = (i + 1) % CH_WRITE_THREADS;
    if (m->of[i].buffer == NULL)
        m->of[i].buffer = ch__malloc(CH_CKPT_BUFFER_BYTES);
    if (m->of[i].buffer != NULL)
        return &m->of[i];
    atomic_store(&m->of[i].is_taken, false);
    return NULL;
}

static void write_file(void *arg, int file)
{
    ch_save                 *s = arg;
    const ch_save_plan      *p = &s->plan;
    file_write               w = {.save = s, .file = file, .item = -1};
    struct ch_write_buffers *mine = take_buffers(s->memory);
    ch_status                rc = mine != NULL ? CH_OK : ch__fail_memory(s->prefix);

    if (mine != NULL) {
        w.window = mine->window;
        w.capacity = mine->capacity;
    }
    if (rc == CH_OK && !ch__fault_is_set(&s->fault))
        rc = ch__ckpt_writer_add_file(s->writer, file, p->first[file + 1] - p->first[file],
                                      p->item + p->first[file], fetch, &w, mine->buffer);
    if (rc != CH_OK)
        (void)ch__fault_record(&s->fault, rc, -1, NULL);
    if (mine == NULL)
        return;
    mine->window = w.window;
    mine->capacity = w.capacity;
    atomic_store(&mine->is_taken, false);
}

static ch_status write_files(ch_save *s)
{
    int       n = s->plan.n_files;
    ch_team  *team = NULL;
    ch_status rc = CH_OK;

    if (n > 1)
        rc = ch__team_new("save", n < CH_WRITE_THREADS ? n : CH_WRITE_THREADS, &team);
    if (rc != CH_OK)
        return rc;
    ch__team_run(team, n, write_file, s);
    ch__team_free(team);
    return ch__fault_raise(&s->fault);
}

static void end_cuts(ch_save *s)
{
    for (int i = 0; i < s->n_cuts; i++)
        ch__cut_end(s->cut[i].cut);
    ch__free(s->cut);
    s->cut = NULL;
    s->n_cuts = 0;
}

/* Names the checkpoint in the errors of servers that are lost later. */
static void name_checkpoint(const ch_save *s)
{
    const ch_strategy *last = NULL;

    for (int i = 0; i < s->plan.n_remotes; i++) {
        ch_strategy *st = ch_var_strategy(s->plan.remote[i].var);

        if (st != last)
            ch__cut_name_checkpoint(st, s->prefix);
        last = st;
    }
}

/* Writes all files under temporary names. */
static ch_status write_all(ch_save *s)
{
    const ch_save_plan   *p = &s->plan;
    ch_ckpt_write_options opt = {
        .no_sync = !s->sync, .replace = s->replace, .buffer = s->memory->of[0].buffer};
    ch_status rc = ch__ckpt_writer_open(s->prefix, p->n_files, &opt, &s->writer);

    if (rc == CH_OK)
        rc = write_files(s);
    end_cuts(s);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_begin_index(s->writer);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_add_keys(s->writer, p->n_items, p->item,
                                      CH_CKPT_SLICES | CH_CKPT_TENSORS);
    return rc;
}

/* Writes and commits the checkpoint. */
static void write_checkpoint(ch_save *s)
{
    ch_status rc = write_all(s);

    if (rc == CH_OK && !CH_KEEPS(COMMIT) && s->committed != NULL)
        rc = s->committed(s->arg, s);
    if (rc == CH_OK)
        rc = check_abandoned(s);
    if (rc == CH_OK)
        rc = ch__ckpt_writer_commit(s->writer);
    if (rc == CH_OK)
        s->bytes = ch__ckpt_writer_bytes(s->writer);
    else
        (void)ch__fault_record(&s->fault, rc, -1, NULL);
    ch__ckpt_writer_close(s->writer);
    s->writer = NULL;
    if (rc != CH_OK)
        return;
    name_checkpoint(s);
    if (CH_KEEPS(COMMIT) && s->committed != NULL) {
        rc = s->committed(s->arg, s);
        if (rc != CH_OK)
            (void)ch__fault_record(&s->fault, rc, -1, NULL);
    }
}

static void run(void *arg)
{
    ch_save  *s = arg;
    ch_status rc = ch__save_plan_finish(&s->plan, s->n_cuts, s->cut);

    if (rc == CH_OK)
        write_checkpoint(s);
    else
        (void)ch__fault_record(&s->fault, rc, -1, NULL);
    end_cuts(s);
    s->ended_ns = ch__now_ns();
    set_past_vars(s);
    atomic_store(&s->is_done, true);
    ch__gate_open(&s->gate);
}

/* Returns true if the program must not wait for the save any longer. */
static bool is_over(const ch_save *s)
{
    return s->limit.until != NULL && ch__now_ns() >= s->limit.until(s->limit.arg);
}

/* Blocks until the gate of the save has moved on; in slices if its limit may begin meanwhile.
 */
static ch_status wait_at_gate(ch_save *s, unsigned seen, const char *peer)
{
    enum { NS_PER_MS = 1000000, SLICE_MS = 20 };
    int64_t now = ch__now_ns(), end = now + ch__config()->wait_limit_ms * (int64_t)NS_PER_MS;

    if (s->limit.until == NULL)
        return ch__gate_wait(&s->gate, seen, 0, peer);
    for (; atomic_load(&s->gate) == seen; now = ch__now_ns()) {
        if (is_over(s) || now >= end)
            return ch__fail(CH_DEADLINE_EXCEEDED, "%s did not end in time", peer);
        ch__gate_idle_until(&s->gate, seen, ch__min(end, now + SLICE_MS * NS_PER_MS));
    }
    return CH_OK;
}

/* Blocks until a flag of the save is set. */
static ch_status wait_for(ch_save *s, atomic_bool *flag)
{
    char peer[256];

    snprintf(peer, sizeof(peer), "the write of %s", s->prefix);
    for (;;) {
        unsigned  seen = atomic_load(&s->gate);
        long long before = atomic_load(&s->written);

        if (atomic_load(flag))
            return CH_OK;
        ch_status rc = wait_at_gate(s, seen, peer);

        if (rc != CH_OK && !atomic_load(flag) &&
            (is_over(s) || atomic_load(&s->written) == before))
            return rc;
    }
}

ch_status ch__save_start(ch_save *s)
{
    bool      reads_vars = s->plan.unstaged_bytes > 0;
    ch_status rc;

    s->began_ns = ch__now_ns();
    rc = ch__thread_start("save", run, s, &s->thread);
    /* The thread reads variables, so the program must not go on before, unless it ends. */
    while (rc == CH_OK && reads_vars && wait_for(s, &s->is_past_vars) != CH_OK)
        if (is_over(s)) {
            atomic_store(&s->is_abandoned, true);
            break;
        }
    return rc;
}

bool ch__save_is_done(ch_save *s)
{
    return atomic_load(&s->is_done);
}

ch_status ch__save_wait(ch_save *s)
{
    ch_status rc = wait_for(s, &s->is_done);

    return rc == CH_OK ? ch__fault_raise(&s->fault) : rc;
}

void ch__save_wait_until(ch_save *s, int64_t until)
{
    while (!atomic_load(&s->is_done) && ch__now_ns() < until) {
        unsigned seen = atomic_load(&s->gate);

        if (!atomic_load(&s->is_done))
            ch__gate_idle_until(&s->gate, seen, until);
    }
}

void ch__save_free(ch_save *s)
{
    if (s == NULL)
        return;
    ch__thread_join(s->thread);
    end_cuts(s);
    ch__save_plan_drop(&s->plan);
    ch__tree_drop(&s->tree);
    ch__free(s->prefix);
    ch__free(s);
}
