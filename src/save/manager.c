/* save/manager.c -- managers: number the checkpoints of a directory, decide when to save, and
 * remove old checkpoints.
 *
 * `saved` lists the checkpoints that the manager may remove, the oldest first. The state file
 * holds the same list (CM-1). The background thread of a save updates both after the commit,
 * and removes checkpoints that are too old (CM-6, CM-7). The program's thread reads the list
 * only when no write is in progress. If a program was killed between the commit and the state
 * file, the next manager adopts the checkpoint. When a restore has verified it, the manager
 * does the rest of that save: it updates the state file and removes checkpoints that are too
 * old.
 *
 * Deltas. A manager with `full_every` writes a full checkpoint, the base, and then its deltas.
 * A full save begins the marks of changed rows at the moment when it copies the state. So the
 * marks belong to it and not to any full checkpoint before, and only when it is committed
 * (base_id) a delta may follow. A base stays as long as the list has a delta that needs it, and
 * deltas are removed before their base. The state file lists such a base too, so that the next
 * manager removes it when it is not needed any more.
 *
 * The cost of saves. A manager with an `overhead` is called between steps. It measures the time
 * between two calls, which is the time of a step: `step_ns` is the mean while nothing is
 * written. A save costs the time that the program waits, and the time by which the steps during
 * the write are longer than `step_ns`. The next save is due when its cost is at most the share
 * `overhead` of the time since the last.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mutant.h"
#include "base/sys.h"
#include "ckpt/directory.h"
#include "ckpt/state_file.h"
#include "cohort/checkpoint.h"
#include "file/folder.h"
#include "save/manager.h"
#include "save/save.h"

typedef struct managed {
    char  *name;       /* without the directory; owned */
    char  *base;       /* of a delta: name of its base; else NULL; owned */
    double time;       /* of the save, in seconds since 1970 */
    bool   is_damaged; /* its index cannot be read, or a restore has skipped it */
} managed;

enum { MAX_NAME = 150 }; /* bytes of a manager's name: a file name has at most 255 */

struct ch_checkpoint_manager {
    atomic_int         refs;
    ch_checkpoint     *checkpoint; /* referenced */
    ch_manager_options opt;        /* opt.name is `name`, opt.step is referenced */
    char              *name;       /* of the checkpoints */
    char              *directory;
    ch_ckpt_lock      *lock;
    managed           *saved;
    int                n_saved, cap_saved;
    /* The entry of the save in progress. It is made before the save, because a delta that was
     * committed must get into the list, or its base would be removed. */
    managed prepared;
    double  last_preserved; /* CM-7, in seconds since 1970 */
    char   *kept;           /* name of a checkpoint that stays; NULL: none */
    bool    keeps_next;     /* the next save is kept instead, if it is committed */
    char   *next_kept;      /* name of such a save in progress; NULL: none */
    char   *path;           /* last result of a call; owned */
    bool    has_step;       /* last_step is known (CM-11) */
    int64_t last_step;
    /* The save that was started last, until settle_step; then the step before it. */
    bool    is_unsettled;
    bool    is_committed; /* set by its background thread */
    bool    had_step;
    int64_t step_before;
    bool    has_logged_skip;
    bool    has_adopted; /* the list has checkpoints that the state file does not have */
    double (*now)(void); /* seconds since 1970 */

    ch_save_marks marks;    /* since the last full save */
    char         *base;     /* name of the last full save; owned */
    uint64_t      base_id;  /* 0: the last full save is not committed, the next must be full */
    int           n_deltas; /* that were committed since */

    int64_t last_call_ns, last_save_ns; /* 0: none */
    double  step_ns;                    /* 0: not known */
    double  cost_ns;                    /* of the last save */
};

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the list of checkpoints ---- */

/* Returns the path of a checkpoint, which the caller must free; NULL: out of memory. */
static char *path_of(const ch_checkpoint_manager *m, const char *name)
{
    size_t size = strlen(m->directory) + strlen(name) + 2;
    char  *path = ch__malloc(size);

    if (path != NULL)
        snprintf(path, size, "%s/%s", m->directory, name);
    return path;
}

/* Returns the number of a checkpoint of this manager, "<name>-<number>"; -1: it is of another
 * name. */
static int64_t number_of(const ch_checkpoint_manager *m, const char *name)
{
    size_t      n = strlen(m->opt.name);
    const char *digits = name + n + 1;

    if (strncmp(name, m->opt.name, n) != 0 || name[n] != '-' || digits[0] == '\0' ||
        strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 17)
        return -1;
    return strtoll(digits, NULL, 10); /* at most CH_SAVED_MAX */
}

static void drop_entry(managed *x)
{
    ch__free(x->name);
    ch__free(x->base);
    *x = (managed){.name = NULL};
}

/* Prepares the entry of a checkpoint, instead of the entry that was prepared before, and room
 * for it in the list. `base` is NULL if the checkpoint is full. */
static ch_status prepare_entry(ch_checkpoint_manager *m, const char *name, const char *base)
{
    drop_entry(&m->prepared);
    m->prepared.name = ch__strdup(name);
    m->prepared.base = base != NULL ? ch__strdup(base) : NULL;
    return m->prepared.name != NULL && (base == NULL || m->prepared.base != NULL) &&
                   ch__grow((void **)&m->saved, &m->cap_saved, m->n_saved + 1,
                            sizeof(*m->saved))
               ? CH_OK
               : ch__fail_memory("a checkpoint manager");
}

/* Adds the prepared entry to the list. */
static void append(ch_checkpoint_manager *m, double time)
{
    m->prepared.time = time;
    m->saved[m->n_saved++] = m->prepared;
    m->prepared = (managed){.name = NULL};
}

/* Adds a checkpoint of an earlier manager. A checkpoint that cannot be read is damaged, and
 * needs no base. */
static ch_status append_found(ch_checkpoint_manager *m, const char *name, double time)
{
    ch_ckpt_metadata found = {.base = NULL};
    char            *path = path_of(m, name);
    bool             is_damaged;
    ch_status        rc = path != NULL ? CH_OK : ch__fail_memory("a checkpoint manager");

    if (rc == CH_OK && m->opt.max_to_keep > 0) /* otherwise nothing is removed */
        rc = ch__ckpt_load_metadata(path, &found);
    is_damaged = rc != CH_OK;
    if (rc != CH_RESOURCE_EXHAUSTED)
        rc = prepare_entry(m, name, found.base);
    if (rc == CH_OK) {
        m->prepared.is_damaged = is_damaged;
        append(m, time);
    }
    ch__free(found.memory);
    ch__free(path);
    return rc;
}

/* Removes entry i from the list. The files stay. */
static void forget(ch_checkpoint_manager *m, int i)
{
    drop_entry(&m->saved[i]);
    memmove(&m->saved[i], &m->saved[i + 1], (size_t)(m->n_saved - i - 1) * sizeof(*m->saved));
    m->n_saved--;
}

/* Returns the index of a checkpoint in the list; -1: the list does not have it. */
static int find_saved(const ch_checkpoint_manager *m, const char *name)
{
    for (int i = 0; i < m->n_saved; i++)
        if (strcmp(m->saved[i].name, name) == 0)
            return i;
    return -1;
}

/* Writes the state file. The newest checkpoint that is not damaged is the last in it. */
static ch_status write_state(const ch_checkpoint_manager *m)
{
    const char **path = ch__malloc(((size_t)m->n_saved + 1) * sizeof(*path));
    double      *time = ch__malloc(((size_t)m->n_saved + 1) * sizeof(*time));
    int          n = m->n_saved;
    ch_status    rc = path != NULL && time != NULL ? CH_OK : ch__fail_memory(m->directory);

    while (n > 0 && m->saved[n - 1].is_damaged)
        n--;
    for (int i = 0; i < n && rc == CH_OK; i++) {
        path[i] = m->saved[i].name;
        time[i] = m->saved[i].time;
    }
    if (rc == CH_OK && n > 0)
        rc = ch__state_file_write(m->directory,
                                  &(ch_state_file){.latest = path[n - 1],
                                                   .n = n,
                                                   .path = path,
                                                   .time = time,
                                                   .has_preserved = true,
                                                   .last_preserved = m->last_preserved},
                                  m->opt.write.sync == CH_OFF);
    ch__free(path);
    ch__free(time);
    return rc;
}

/* Returns true if a checkpoint is to be preserved for its hour (CM-7). */
static bool is_preserved(const ch_checkpoint_manager *m, int i)
{
    return m->opt.keep_every_hours > 0 &&
           m->saved[i].time - m->opt.keep_every_hours * 3600 >= m->last_preserved;
}

/* Returns true if a delta of the list needs a checkpoint. */
static bool is_base(const ch_checkpoint_manager *m, int i)
{
    for (int k = 0; k < m->n_saved; k++)
        if (m->saved[k].base != NULL && strcmp(m->saved[k].base, m->saved[i].name) == 0)
            return true;
    return false;
}

/* Returns the index of the oldest checkpoint that leaves the list; -1: none. The newest
 * max_to_keep that are not damaged stay, and beside them the kept one and the bases of deltas.
 * Damaged checkpoints do not count, because otherwise they would take the place of the one that
 * a restore has gone back to. */
static int oldest(const ch_checkpoint_manager *m)
{
    int n_newer = 0, found = -1;

    for (int i = m->n_saved - 1; m->opt.max_to_keep > 0 && i >= 0; i--) {
        bool is_kept = m->kept != NULL && strcmp(m->saved[i].name, m->kept) == 0;

        if (n_newer >= m->opt.max_to_keep && !is_kept &&
            (is_preserved(m, i) || !CH_KEEPS(BASE) || !is_base(m, i)))
            found = i;
        n_newer += !m->saved[i].is_damaged;
    }
    return found;
}

/* Removes the checkpoints that are too old (CM-7). */
static ch_status sweep(ch_checkpoint_manager *m)
{
    bool no_sync = m->opt.write.sync == CH_OFF || !CH_KEEPS(SWEEPSYNC);
    int  i;

    while ((i = oldest(m)) >= 0) {
        int base = m->saved[i].base != NULL ? find_saved(m, m->saved[i].base) : -1;

        if (is_preserved(m, i)) {
            m->last_preserved = m->saved[i].time;
            forget(m, i);
            if (base >= 0) /* preserved with its delta */
                forget(m, base < i ? base : base - 1);
        } else {
            char     *path = path_of(m, m->saved[i].name);
            ch_status rc =
                path != NULL ? ch__ckpt_remove(path, no_sync) : ch__fail_memory(m->directory);

            ch__free(path);
            if (rc != CH_OK)
                return rc;
            forget(m, i);
        }
    }
    return CH_OK;
}

/* Updates the state file and removes the checkpoints that are too old. */
static ch_status update_directory(ch_checkpoint_manager *m)
{
    int       before = m->n_saved;
    ch_status rc = write_state(m);

    if (rc == CH_OK)
        rc = sweep(m);
    return m->n_saved != before && rc == CH_OK ? write_state(m) : rc;
}

/* Runs on the background thread after a commit (CM-6). */
static ch_status committed(void *arg, const ch_save *s)
{
    ch_checkpoint_manager  *m = arg;
    const ch_ckpt_metadata *about = &s->plan.metadata;

    m->is_committed = true;
    append(m, m->now());
    if (m->next_kept != NULL) {
        ch__free(m->kept);
        m->kept = m->next_kept;
        m->next_kept = NULL;
    }
    if (about->base != NULL) {
        m->n_deltas++;
        ch__log(CH_LOG_INFO, "checkpoint", "%s is a delta of %s: %lld bytes", s->prefix,
                about->base, (long long)s->plan.bytes);
    } else {
        m->n_deltas = 0;
        m->base_id = about->id;
    }
    m->has_adopted = false;
    return update_directory(m);
}

/* Adds checkpoints that were committed before their program was killed, and that the state file
 * does not list yet. */
static ch_status adopt(ch_checkpoint_manager *m, const ch_ckpt_list *all, int64_t after)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < all->n && rc == CH_OK; i++)
        if (number_of(m, all->name[i]) > after) {
            rc = append_found(m, all->name[i], m->now());
            m->has_adopted = true;
        }
    return rc;
}

/* Reads what an earlier manager has left (CM-8, CM-9). */
static ch_status read_state(ch_checkpoint_manager *m)
{
    ch_state_file state = {.n = 0};
    ch_ckpt_list  all = {.n = 0};
    double        now = m->now();
    int64_t       newest = -1;
    ch_status     rc = ch__state_file_read(m->directory, &state);

    m->last_preserved = now - 1;
    if (rc != CH_OK && rc != CH_NOT_FOUND)
        ch__log(CH_LOG_WARNING, "checkpoint", "%s; the directory is searched instead",
                ch_error_message());
    if (rc == CH_OK && state.has_preserved)
        m->last_preserved = state.last_preserved;
    if (now < m->last_preserved) {
        ch__log(CH_LOG_WARNING, "checkpoint",
                "%s: the clock is behind the time of the last checkpoint that was kept; older "
                "checkpoints will not be removed",
                m->directory);
        m->last_preserved = now;
    }
    for (int i = 0; i < state.n && rc == CH_OK; i++) {
        double time = state.time != NULL ? fmin(state.time[i], now) : -INFINITY;

        newest = number_of(m, state.path[i]) > newest ? number_of(m, state.path[i]) : newest;
        if (time > m->last_preserved || (state.time != NULL && !state.has_preserved))
            rc = append_found(m, state.path[i], time);
    }
    bool is_managed = state.n == 0 || state.time != NULL;

    ch__free(state.memory);
    rc = rc == CH_RESOURCE_EXHAUSTED ? rc : ch__ckpt_list(m->directory, &all);
    if (rc == CH_OK && is_managed)
        rc = adopt(m, &all, newest);
    /* Numbers are never used again, so that a checkpoint is not replaced. */
    for (int i = 0; i < all.n; i++)
        if (number_of(m, all.name[i]) > m->checkpoint->counter)
            m->checkpoint->counter = number_of(m, all.name[i]);
    ch__ckpt_list_drop(&all);
    return rc;
}

/* ---- life ---- */

static ch_status check_options(const ch_checkpoint_manager *m)
{
    const ch_manager_options *o = &m->opt;
    const char               *problem = NULL;

    if (o->max_to_keep < 0)
        problem = "max_to_keep is negative; 0 keeps all";
    else if (!(o->keep_every_hours >= 0))
        problem = "keep_every_hours is not 0 or more";
    else if (o->interval < 0)
        problem = "the interval is negative";
    else if (o->interval > 0 && o->step == NULL)
        problem = "an interval needs the variable that counts steps (ch_manager_options.step)";
    else if (o->write.staging_bytes < 0)
        problem = "write.staging_bytes is negative; 0 is the size of the state";
    else if (o->full_every < 0)
        problem = "full_every is negative; 0 makes every checkpoint full";
    else if (!(o->overhead >= 0 && o->overhead < 1))
        problem = "the overhead is not in [0, 1)";
    else if (o->step != NULL &&
             (ch_var_dtype(o->step) != CH_I64 || ch_var_shape(o->step).rank > 0))
        problem = "the variable that counts steps is not an i64 scalar";
    else if (o->name[0] == '\0' || strchr(o->name, '/') != NULL)
        problem = "the name is empty or contains a \"/\"";
    else if (o->name[0] == '.')
        problem = "the name begins with \".\", as temporary files do";
    else if (strlen(o->name) > MAX_NAME)
        problem = "the name has more than 150 bytes";
    return problem == NULL ? CH_OK
                           : ch__fail(CH_INVALID_ARGUMENT, "checkpoint manager for %s: %s",
                                      m->directory, problem);
}

static void free_manager(ch_checkpoint_manager *m)
{
    ch__ckpt_unlock(m->lock);
    while (m->n_saved > 0)
        forget(m, m->n_saved - 1);
    drop_entry(&m->prepared);
    ch__free(m->saved);
    ch__save_marks_end(&m->marks);
    ch__free(m->base);
    ch__free(m->name);
    ch_var_unref(m->opt.step);
    ch__free(m->directory);
    ch__free(m->kept);
    ch__free(m->next_kept);
    ch__free(m->path);
    ch_checkpoint_unref(m->checkpoint);
    ch__free(m);
}

ch_status ch__manager_new(ch_checkpoint *c, const char *directory,
                          const ch_manager_options *opt, double (*now)(void),
                          ch_checkpoint_manager   **out)
{
    ch_checkpoint_manager *m = ch__calloc(1, sizeof(*m));
    size_t                 n = strlen(directory);
    char                   prefix[300];
    ch_status              rc = m != NULL ? CH_OK : ch__fail_memory("a checkpoint manager");

    if (rc != CH_OK)
        return rc;
    atomic_init(&m->refs, 1);
    m->now = now;
    m->checkpoint = ch_checkpoint_ref(c);
    m->opt = opt != NULL ? *opt : (ch_manager_options){.name = NULL};
    m->name = ch__strdup(m->opt.name != NULL ? m->opt.name : "ckpt");
    m->opt.name = m->name;
    m->opt.step = ch_var_ref(m->opt.step);
    m->directory = ch__strdup(directory);
    if (m->directory == NULL || m->opt.name == NULL)
        rc = ch__fail_memory("a checkpoint manager");
    while (rc == CH_OK && n > 1 && m->directory[n - 1] == '/')
        m->directory[--n] = '\0';
    if (rc == CH_OK)
        rc = check_options(m);
    if (rc == CH_OK)
        rc = ch__checkpoint_collect(c, true);
    if (rc == CH_OK)
        rc = ch__folder_make(m->directory);
    if (rc == CH_OK)
        rc = ch__ckpt_lock(m->directory, &m->lock);
    if (rc == CH_OK) {
        snprintf(prefix, sizeof(prefix), "%s-", m->opt.name);
        ch__ckpt_remove_leftovers(m->directory, prefix);
        rc = read_state(m);
    }
    /* Without memory now, the save reports it. */
    if (rc == CH_OK && ch__checkpoint_prepare(c, m->opt.write.staging_bytes) != CH_OK)
        ch__log(CH_LOG_INFO, "checkpoint", "%s", ch_error_message());
    if (rc == CH_OK)
        *out = m;
    else
        free_manager(m);
    return rc;
}

ch_status ch_checkpoint_manager_new(ch_checkpoint *c, const char *directory,
                                    const ch_manager_options *opt, ch_checkpoint_manager **out)
{
    ch_status rc =
        ch__check_not_null("checkpoint manager", "the checkpoint", c, "directory", directory);

    if (rc == CH_OK)
        rc = ch__check_not_null("checkpoint manager", "out", out, NULL, NULL);
    return rc == CH_OK ? ch__manager_new(c, directory, opt, seconds_now, out) : rc;
}

ch_checkpoint_manager *ch_checkpoint_manager_ref(ch_checkpoint_manager *m)
{
    if (m != NULL)
        atomic_fetch_add(&m->refs, 1);
    return m;
}

void ch_checkpoint_manager_unref(ch_checkpoint_manager *m)
{
    if (m == NULL || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    /* The background thread uses the manager. */
    if (ch__checkpoint_collect(m->checkpoint, true) != CH_OK)
        ch__log(CH_LOG_WARNING, "checkpoint", "%s", ch_error_message());
    free_manager(m);
}

/* ---- saving ---- */

static ch_status read_step(const ch_checkpoint_manager *m, int64_t *out)
{
    ch_tensor *t = NULL;
    ch_status  rc;

    *out = -1;
    if (m->opt.step == NULL)
        return CH_OK;
    rc = ch__var_get(m->opt.step, &t);
    if (rc == CH_OK)
        *out = *(const int64_t *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return rc;
}

/* Takes the step of the last save back if its write has failed: the step is not saved. The
 * error may have been returned by a call on the checkpoint. */
static void settle_step(ch_checkpoint_manager *m)
{
    if (!m->is_unsettled || ch__checkpoint_is_writing(m->checkpoint))
        return;
    m->is_unsettled = false;
    if (m->is_committed)
        return;
    m->has_step = m->had_step;
    m->last_step = m->step_before;
}

/* Measures the step that has ended with this call. */
static void measure_step(ch_checkpoint_manager *m, bool was_writing)
{
    int64_t now = ch__now_ns();
    double  step = (double)(now - m->last_call_ns);

    if (m->last_call_ns > 0 && was_writing) {
        if (m->step_ns > 0 && step > m->step_ns)
            m->cost_ns += step - m->step_ns;
    } else if (m->last_call_ns > 0) {
        m->step_ns = m->step_ns > 0 ? m->step_ns + (step - m->step_ns) / 16 : step;
    }
}

/* Returns false if the program has scheduled only a part of a round (CH_SYNCHRONOUS). A save
 * would end the round early, so it waits until the round is complete. */
static bool is_between_rounds(const ch_checkpoint_manager *m)
{
    const ch_checkpoint *c = m->checkpoint;

    for (int i = 0; i < c->n_added; i++)
        if (c->added[i].kind == CH_SAVED_LAYER &&
            ch__cut_divides_round(ch_model_strategy(c->added[i].owner)))
            return false;
    return true;
}

static bool is_due(const ch_checkpoint_manager *m, int64_t step)
{
    if (m->opt.interval > 0 && m->has_step &&
        (step < m->last_step ||
         (uint64_t)step - (uint64_t)m->last_step < (uint64_t)m->opt.interval))
        return false;
    /* The cost is not known before the write has ended. */
    if (m->opt.overhead > 0 && m->last_save_ns > 0 &&
        (ch__checkpoint_is_writing(m->checkpoint) ||
         (double)(ch__now_ns() - m->last_save_ns) * m->opt.overhead < m->cost_ns))
        return false;
    return true;
}

/* Returns true if the base of deltas is in the directory, as it was written. */
static bool has_base(const ch_checkpoint_manager *m)
{
    ch_ckpt_metadata found = {.id = 0};
    char            *path = path_of(m, m->base);
    ch_status        rc =
        path != NULL ? ch__ckpt_load_metadata(path, &found) : ch__fail_memory("a checkpoint");
    bool is_same = rc == CH_OK && found.id == m->base_id;

    if (!is_same)
        ch__log(CH_LOG_WARNING, "checkpoint",
                "%s/%s can be the base of a delta no longer; the next checkpoint is full: %s",
                m->directory, m->base,
                rc == CH_OK ? "it was replaced by another" : ch_error_message());
    ch__free(found.memory);
    ch__free(path);
    return is_same;
}

/* Decides whether the next save is a delta. If it is full, makes `name` the next base. */
static ch_status choose_base(ch_checkpoint_manager *m, const char *name, bool *is_delta)
{
    char *base;

    *is_delta = m->base_id != 0 && m->n_deltas + 1 < m->opt.full_every && has_base(m);
    if (*is_delta || m->opt.full_every <= 1)
        return CH_OK;
    base = ch__strdup(name);
    if (base == NULL)
        return ch__fail_memory("a checkpoint");
    ch__free(m->base);
    m->base = base;
    m->base_id = 0;
    return CH_OK;
}

/* Locks the directory again if it was removed, or moved away, while the training runs. */
static ch_status lock_again(ch_checkpoint_manager *m)
{
    ch_status rc;

    if (m->lock != NULL && ch__ckpt_is_locked(m->lock))
        return CH_OK;
    ch__ckpt_unlock(m->lock);
    m->lock = NULL;
    m->base_id = 0;
    rc = ch__folder_make(m->directory);
    if (rc == CH_OK)
        rc = ch__ckpt_lock(m->directory, &m->lock);
    if (rc == CH_OK)
        ch__log(CH_LOG_WARNING, "checkpoint",
                "%s: the lock of this directory was removed; the manager has locked it again",
                m->directory);
    return rc;
}

/* Notes the name of a save that is to be kept. */
static ch_status prepare_kept(ch_checkpoint_manager *m, const char *name)
{
    bool keeps = m->keeps_next;

    ch__free(m->next_kept);
    m->next_kept = keeps ? ch__strdup(name) : NULL;
    m->keeps_next = false;
    return keeps && m->next_kept == NULL ? ch__fail_memory("a checkpoint manager") : CH_OK;
}

static ch_status save(ch_checkpoint_manager *m, int64_t step, bool is_prepared)
{
    char     *name;
    size_t    size = strlen(m->opt.name) + 24;
    int64_t   began = ch__now_ns();
    bool      is_delta = false;
    ch_status rc = ch__checkpoint_collect(m->checkpoint, true); /* it may have made the base */

    settle_step(m);
    ch__free(m->path);
    m->path = NULL;
    if (rc == CH_OK)
        rc = lock_again(m);
    if (rc != CH_OK)
        return rc;
    name = ch__malloc(size);
    if (name == NULL)
        return ch__fail_memory("a checkpoint");
    m->checkpoint->counter++;
    snprintf(name, size, "%s-%lld", m->opt.name, (long long)m->checkpoint->counter);
    m->path = path_of(m, name);
    rc = m->path != NULL ? choose_base(m, name, &is_delta) : ch__fail_memory("a checkpoint");
    if (rc == CH_OK)
        rc = prepare_entry(m, name, is_delta ? m->base : NULL);
    if (rc == CH_OK)
        rc = prepare_kept(m, name);
    ch__free(name);
    if (rc != CH_OK)
        return rc;
    m->is_committed = false;
    rc = ch__checkpoint_save_at(
        m->checkpoint,
        &(ch_save_request){.prefix = m->path,
                           .began_ns = began,
                           .step = step,
                           .committed = committed,
                           .arg = m,
                           .is_prepared = is_prepared,
                           .marks = m->opt.full_every > 1 ? &m->marks : NULL,
                           .base = is_delta ? m->base : NULL,
                           .base_id = is_delta ? m->base_id : 0},
        &(ch_write_options){.wait = m->opt.write.wait,
                            .staging_bytes = m->opt.write.staging_bytes,
                            .sync = m->opt.write.sync});
    m->last_save_ns = ch__now_ns();
    m->cost_ns = (double)(m->last_save_ns - began);
    if (rc == CH_OK) {
        m->is_unsettled = true;
        m->had_step = m->has_step;
        m->step_before = m->last_step;
        m->last_step = step;
        m->has_step = m->opt.step != NULL;
    }
    return rc;
}

/* Adds the last checkpoint to the error of a job that has lost a parameter server, unless the
 * error names it. The program must be started again from there. */
static ch_status name_last(const ch_checkpoint_manager *m, ch_status rc)
{
    ch_fault why;
    char     path[PATH_MAX];
    bool     is_any;

    if (rc != CH_UNAVAILABLE)
        return rc;
    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    is_any = ch__ckpt_find_latest(m->directory, path, sizeof(path)) == CH_OK;
    rc = ch__fault_raise(&why);
    if (is_any && strstr(why.text, path) != NULL)
        return ch__fail_at(rc, "not saved");
    return is_any ? ch__fail_at(rc, "not saved, and the last checkpoint is %s", path)
                  : ch__fail_at(rc, "not saved, and %s has no checkpoint yet", m->directory);
}

/* Counts a save that is due before the last one is written. */
static void count_skipped(ch_checkpoint_manager *m)
{
    m->checkpoint->costs.n_skipped++;
    if (!m->has_logged_skip)
        ch__log(CH_LOG_WARNING, "checkpoint",
                "%s: a save is due before the last one is written, so it is skipped; save less "
                "often, or use a faster disk (the time table of ch_fit and "
                "ch_checkpoint_print_plan count such saves)",
                m->directory);
    m->has_logged_skip = true;
}

static ch_status save_if_due(ch_checkpoint_manager *m, bool force, bool is_prepared,
                             const char **path)
{
    int64_t   step = -1;
    bool      was_writing;
    ch_status rc = ch__check_not_null("checkpoint manager save", "the manager", m, NULL, NULL);

    if (path != NULL)
        *path = NULL;
    if (rc != CH_OK)
        return rc;
    was_writing = m->checkpoint->save != NULL;
    measure_step(m, was_writing);
    rc = ch__checkpoint_collect(m->checkpoint, false);
    if (rc == CH_OK)
        rc = read_step(m, &step);
    /* Whether this step is saved is known when its write has ended. */
    if (rc == CH_OK && force && m->has_step && step == m->last_step)
        rc = ch__checkpoint_collect(m->checkpoint, true);
    settle_step(m);
    bool is_repeated = m->has_step && step == m->last_step;
    bool is_wanted =
        rc == CH_OK && !is_repeated && (force || (is_due(m, step) && is_between_rounds(m)));
    bool may_skip = !force && m->opt.interval > 0;

    if (is_wanted && may_skip && ch__checkpoint_is_writing(m->checkpoint)) {
        count_skipped(m);
    } else if (is_wanted) {
        rc = name_last(m, save(m, step, is_prepared));
        if (rc == CH_OK && path != NULL)
            *path = m->path;
    }
    m->last_call_ns = ch__now_ns();
    return rc;
}

ch_status ch_checkpoint_manager_save(ch_checkpoint_manager *m, bool force, const char **path)
{
    return save_if_due(m, force, false, path);
}

ch_status ch__manager_save_prepared(ch_checkpoint_manager *m, const char **path)
{
    return save_if_due(m, true, true, path);
}

bool ch__manager_is_due(ch_checkpoint_manager *m, bool is_wanted, bool is_forced)
{
    bool is_writing = ch__checkpoint_is_writing(m->checkpoint);

    measure_step(m, is_writing);
    m->last_call_ns = ch__now_ns();
    if (!is_forced && (!is_wanted || !is_due(m, 0)))
        return false;
    if (is_writing && !is_forced) {
        count_skipped(m);
        return false;
    }
    m->last_call_ns = 0; /* the save that follows is no step */
    return true;
}

void ch__manager_count_saves(const ch_checkpoint_manager *m, int64_t *saves, int64_t *skipped)
{
    *saves += m->checkpoint->costs.n_saves;
    *skipped += m->checkpoint->costs.n_skipped;
}

ch_status ch__manager_wait(ch_checkpoint_manager *m, int64_t until, bool *is_ended)
{
    ch_checkpoint *c = m->checkpoint;
    ch_status      rc = CH_OK;

    if (until != INT64_MAX && c->save != NULL)
        ch__save_wait_until(c->save, until);
    if (until == INT64_MAX || !ch__checkpoint_is_writing(c))
        rc = ch__checkpoint_collect(c, true);
    *is_ended = !ch__checkpoint_is_writing(c);
    return rc;
}

void ch__manager_limit_waits(ch_checkpoint_manager *m, int64_t (*until)(void *arg), void *arg)
{
    m->checkpoint->limit = (ch_wait_limit){until, arg};
}

void ch__manager_abandon(ch_checkpoint_manager *m)
{
    if (m->checkpoint->save != NULL)
        atomic_store(&m->checkpoint->save->is_abandoned, true);
}

ch_status ch__manager_keep(ch_checkpoint_manager *m, const char *name)
{
    char *copy = NULL;

    if (name != NULL) {
        copy = ch__strdup(strrchr(name, '/') != NULL ? strrchr(name, '/') + 1 : name);
        if (copy == NULL)
            return ch__fail_memory("a checkpoint manager");
    }
    ch__free(m->kept);
    m->kept = copy;
    return CH_OK;
}

void ch__manager_keep_next(ch_checkpoint_manager *m)
{
    m->keeps_next = true;
}

/* ---- restoring ---- */

ch_status ch_checkpoint_manager_restore(ch_checkpoint_manager *m, ch_restored **r,
                                        const char **path)
{
    ch_ckpt_list       all = {.n = 0};
    ch_bytes_builder   damage = {NULL};
    bool               is_restored = false;
    ch_restore_options opt = {.staging_bytes = m != NULL ? m->opt.write.staging_bytes : 0};
    ch_status          rc =
        ch__check_not_null("checkpoint manager restore", "the manager", m, NULL, NULL);

    if (path != NULL)
        *path = NULL;
    if (r != NULL)
        *r = NULL;
    if (rc == CH_OK)
        rc = ch__checkpoint_collect(m->checkpoint, true);
    if (rc == CH_OK) {
        settle_step(m);
        m->base_id = 0; /* a restore changes all rows */
        rc = ch__ckpt_list(m->directory, &all);
    }
    for (int i = all.n - 1; i >= 0 && rc == CH_OK && !is_restored; i--) {
        int64_t newest = m->checkpoint->counter;
        bool    is_damaged = false;

        if (number_of(m, all.name[i]) < 0)
            continue;
        ch__free(m->path);
        m->path = path_of(m, all.name[i]);
        rc = m->path != NULL
                 ? ch__checkpoint_restore(m->checkpoint, m->path, &opt, r, &is_damaged)
                 : ch__fail_memory("a restore");
        is_restored = rc == CH_OK;
        if (is_restored && m->checkpoint->counter < newest)
            m->checkpoint->counter = newest; /* numbers are never used again */
        if (rc != CH_OK && is_damaged) {
            int at = find_saved(m, all.name[i]);

            if (at >= 0)
                m->saved[at].is_damaged = true;
            ch__log(CH_LOG_WARNING, "checkpoint", "%s is skipped: %s", m->path,
                    ch_error_message());
            ch__bytes_builder_text(&damage, damage.n > 0 ? "; " : "");
            ch__bytes_builder_text(&damage, ch_error_message());
            rc = CH_OK;
        }
    }
    if (rc == CH_OK && !is_restored && damage.n > 0) {
        ch__bytes_builder_add(&damage, "", 1);
        rc = ch__fail(CH_DATA_LOSS, "%s: all checkpoints are damaged: %s", m->directory,
                      damage.has_failed ? "see the log" : damage.at);
    } else if (rc == CH_OK && !is_restored && m->opt.init != NULL) {
        uint64_t mark = ch__fail_mark();

        rc = ch__fail_since(mark, m->opt.init(m->opt.init_arg));
    }
    if (rc == CH_OK && is_restored) {
        if (path != NULL)
            *path = m->path;
        m->has_step = m->opt.step != NULL;
        rc = read_step(m, &m->last_step);
        if (m->has_adopted && update_directory(m) != CH_OK) /* the next save does it */
            ch__log(CH_LOG_WARNING, "checkpoint", "%s", ch_error_message());
        m->has_adopted = false;
    }
    ch__bytes_builder_drop(&damage);
    ch__ckpt_list_drop(&all);
    return rc;
}
