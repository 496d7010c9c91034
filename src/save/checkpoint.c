/* save/checkpoint.c -- checkpoints: the list of objects, and saving.
 *
 * A save has three phases. ch__checkpoint_save_at takes the state between two steps: it asks
 * the objects for their state, takes snapshots on parameter servers, and copies the variables
 * of this process to staging memory. Then the program goes on, and write.c writes the files.
 * ch__checkpoint_collect returns the error of that write, at the next call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/directory.h"
#include "ckpt/state_file.h"
#include "save/save.h"
#include "strategy/strategy.h"
#include "tensor/print.h"
#include "train/model.h"

/* ---- objects ---- */

ch_status ch_checkpoint_new(ch_checkpoint **out)
{
    ch_status      rc = ch__check_not_null("checkpoint", "out", out, NULL, NULL);
    ch_checkpoint *c = rc == CH_OK ? ch__calloc(1, sizeof(*c)) : NULL;

    if (rc != CH_OK)
        return rc;
    if (c == NULL)
        return ch__fail_memory("a checkpoint");
    atomic_init(&c->refs, 1);
    *out = c;
    return CH_OK;
}

ch_checkpoint *ch_checkpoint_ref(ch_checkpoint *c)
{
    if (c != NULL)
        atomic_fetch_add(&c->refs, 1);
    return c;
}

/* References the object of an entry. */
static void ref_object(const ch_added *a)
{
    switch (a->kind) {
    case CH_SAVED_LAYER:
        ch_model_ref(a->owner);
        break;
    case CH_SAVED_OPTIMIZER:
        ch_optimizer_ref(a->owner);
        break;
    case CH_SAVED_METRIC:
        ch_metric_ref(a->owner);
        break;
    case CH_SAVED_VAR:
        ch_var_ref(a->owner);
        break;
    case CH_SAVED_FUNCTION:
        ch_function_ref(a->owner);
        break;
    case CH_SAVED_ITERATOR:
        ch_iterator_ref(a->owner);
        break;
    case CH_SAVED_PER_WORKER:
        ch_per_worker_ref(a->owner);
        break;
    case CH_SAVED_ROOT:
    case CH_SAVED_COUNTER:
    case CH_SAVED_STATE:
        break;
    }
}

static void unref_object(const ch_added *a)
{
    switch (a->kind) {
    case CH_SAVED_LAYER:
        ch_model_unref(a->owner);
        break;
    case CH_SAVED_OPTIMIZER:
        ch_optimizer_unref(a->owner);
        break;
    case CH_SAVED_METRIC:
        ch_metric_unref(a->owner);
        break;
    case CH_SAVED_VAR:
        ch_var_unref(a->owner);
        break;
    case CH_SAVED_FUNCTION:
        ch_function_unref(a->owner);
        break;
    case CH_SAVED_ITERATOR:
        ch_iterator_unref(a->owner);
        break;
    case CH_SAVED_PER_WORKER:
        ch_per_worker_unref(a->owner);
        break;
    case CH_SAVED_ROOT:
    case CH_SAVED_COUNTER:
    case CH_SAVED_STATE:
        break;
    }
}

void ch_checkpoint_unref(ch_checkpoint *c)
{
    if (c == NULL || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    if (c->save != NULL && ch__checkpoint_collect(c, true) != CH_OK)
        ch__log(CH_LOG_WARNING, "checkpoint", "%s", ch_error_message());
    ch__save_free(c->save);
    ch_restored_unref(c->restored);
    for (int i = 0; i < c->n_added; i++) {
        /* Servers have kept memory for their copies. */
        if (c->added[i].kind == CH_SAVED_LAYER)
            ch__cut_free_memory(ch_model_strategy(c->added[i].owner));
        else if (c->added[i].kind == CH_SAVED_VAR)
            ch__cut_free_memory(ch_var_strategy(c->added[i].owner));
        unref_object(&c->added[i]);
        ch__free(c->added[i].name);
    }
    ch__free(c->added);
    ch__staging_drop(&c->staging);
    ch__write_memory_drop(&c->write_memory);
    ch__team_free(c->team);
    ch__free(c);
}

/* Adds an object to the list, and references its owner. */
static ch_status add(ch_checkpoint *c, const char *name, ch_saved_kind kind, void *object,
                     void *owner, const ch_state_ops *ops)
{
    ch_status rc = ch__check_not_null("checkpoint add", "the checkpoint", c, "name", name);
    char     *copy;

    if (rc == CH_OK && object == NULL && kind != CH_SAVED_STATE)
        rc = ch__fail(CH_INVALID_ARGUMENT, "checkpoint add: the object \"%s\" is NULL", name);
    for (int i = 0; rc == CH_OK && i < c->n_added; i++)
        if (strcmp(c->added[i].name, name) == 0)
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "checkpoint add: the name \"%s\" is in use; choose another", name);
    if (rc == CH_OK && (name[0] == '\0' || strcmp(name, CH_COUNTER_NAME) == 0))
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "checkpoint add: the name \"%s\" is reserved; choose another", name);
    if (rc != CH_OK)
        return rc;
    copy = ch__strdup(name);
    if (copy == NULL ||
        !ch__grow((void **)&c->added, &c->cap_added, c->n_added + 1, sizeof(*c->added))) {
        ch__free(copy);
        return ch__fail_memory("a checkpoint");
    }
    c->added[c->n_added] = (ch_added){copy, kind, object, owner, ops};
    ref_object(&c->added[c->n_added++]);
    return CH_OK;
}

ch_status ch_checkpoint_add_model(ch_checkpoint *c, const char *name, ch_model *m)
{
    return add(c, name, CH_SAVED_LAYER, ch_model_layer(m), m, NULL);
}

ch_status ch_checkpoint_add_optimizer(ch_checkpoint *c, const char *name, ch_optimizer *o)
{
    return add(c, name, CH_SAVED_OPTIMIZER, o, o, NULL);
}

ch_status ch_checkpoint_add_metric(ch_checkpoint *c, const char *name, ch_metric *x)
{
    return add(c, name, CH_SAVED_METRIC, x, x, NULL);
}

ch_status ch_checkpoint_add_var(ch_checkpoint *c, const char *name, ch_var *v)
{
    ch_var *whole = v != NULL ? ch_var_whole(v) : NULL;

    return add(c, name, CH_SAVED_VAR, whole, whole, NULL);
}

ch_status ch_checkpoint_add_function(ch_checkpoint *c, const char *name, ch_function *f)
{
    return add(c, name, CH_SAVED_FUNCTION, f, f, NULL);
}

ch_status ch_checkpoint_add_iterator(ch_checkpoint *c, const char *name, ch_iterator *it)
{
    return add(c, name, CH_SAVED_ITERATOR, it, it, NULL);
}

ch_status ch_checkpoint_add_per_worker(ch_checkpoint *c, const char *name, ch_per_worker *p)
{
    return add(c, name, CH_SAVED_PER_WORKER, p, p, NULL);
}

ch_status ch_checkpoint_add_state(ch_checkpoint *c, const char *name, const ch_state_ops *ops,
                                  void *self)
{
    if (ops == NULL)
        return ch__check_not_null("checkpoint add", "ops", ops, NULL, NULL);
    return add(c, name, CH_SAVED_STATE, self, NULL, ops);
}

/* ---- the last write ---- */

bool ch__checkpoint_is_writing(const ch_checkpoint *c)
{
    return c->save != NULL && !ch__save_is_done(c->save);
}

ch_status ch__checkpoint_collect(ch_checkpoint *c, bool wait)
{
    ch_status rc;

    if (c->save == NULL || (!wait && !ch__save_is_done(c->save)))
        return CH_OK;
    rc = ch__save_wait(c->save);
    if (!ch__save_is_done(c->save))
        return rc; /* the limit of the wait is over; the write goes on */
    c->costs.write_ns = c->save->ended_ns - c->save->began_ns;
    c->costs.n_failed += rc != CH_OK;
    if (rc == CH_OK && c->save->plan.metadata.base != NULL) {
        c->costs.n_deltas++;
        c->costs.delta_bytes = c->save->bytes;
    } else if (rc == CH_OK) {
        c->costs.full_bytes = c->save->bytes;
    }
    ch__save_free(c->save);
    c->save = NULL;
    return rc;
}

ch_status ch_checkpoint_wait(ch_checkpoint *c)
{
    ch_status rc = ch__check_not_null("checkpoint wait", "the checkpoint", c, NULL, NULL);

    return rc == CH_OK ? ch__checkpoint_collect(c, true) : rc;
}

/* ---- saving ---- */

ch_team *ch__checkpoint_team(ch_checkpoint *c)
{
    /* Without threads one core does the work. */
    if (c->team == NULL && ch__cpu_count() > 1 &&
        ch__team_new("checkpoint", ch__cpu_count(), &c->team) != CH_OK)
        c->team = NULL;
    return c->team;
}

ch_status ch__checkpoint_check_context(const char *call)
{
    ch_strategy *current = NULL;

    if (ch__run_is_on_thread())
        return ch__fail(CH_FAILED_PRECONDITION, "%s: a step is running on this thread", call);
    return ch__strategy_check_cross(&current, call, "no such call");
}

/* Checks that there is no checkpoint at the prefix, and creates its directory. */
static ch_status check_prefix(const char *prefix, bool replace)
{
    ch_status rc = ch__ckpt_check_name(prefix);

    if (rc == CH_OK)
        rc = ch__ckpt_make_folder(prefix);
    if (rc == CH_OK && !replace)
        rc =
            ch__ckpt_check_free(prefix, "choose another name, or set ch_write_options.replace");
    return rc;
}

/* Taking the state: the argument of the calls inside the cuts. */
typedef struct taking {
    ch_checkpoint          *c;
    ch_save                *save;
    const ch_save_request  *request;
    const ch_write_options *opt;
    int                     n_taken; /* cuts that have begun */
} taking;

/* Returns true if later deltas need the rows that change after this save. */
static bool begins_marks(const ch_save_request *r)
{
    return r->marks != NULL && r->base == NULL;
}

/* Returns the most runs of a function, or steps of a model, that are saved; -1: none are. */
static int64_t count_steps(const ch_tree *t)
{
    int64_t most = -1;

    for (int i = 0; i < t->n_values; i++) {
        const ch_saved_value *v = &t->value[i];
        ch_saved_kind         kind = t->node[v->node].kind;

        if (v->state != NULL && (kind == CH_SAVED_LAYER || kind == CH_SAVED_FUNCTION)) {
            int64_t n = *(const int64_t *)ch_tensor_data(v->state);

            most = n > most ? n : most;
        }
    }
    return most;
}

/* Asks all objects for their state, and copies the variables of this process. */
static ch_status copy_state(taking *t)
{
    ch_checkpoint *c = t->c;
    ch_save       *s = t->save;
    int64_t        began, step = t->request->step;
    ch_status      rc = ch__tree_add_state(&s->tree);

    if (rc == CH_OK && step < 0) /* the program does not say it */
        step = count_steps(&s->tree);
    if (rc == CH_OK)
        rc = ch__save_plan_make(&s->tree,
                                &(ch_save_plan_options){.staging_bytes = t->opt->staging_bytes,
                                                        .step = step,
                                                        .base = t->request->base,
                                                        .base_id = t->request->base_id,
                                                        .marks = t->request->marks},
                                &s->plan);
    if (rc == CH_OK)
        rc = ch__staging_reserve(&c->staging, ch__checkpoint_team(c), s->plan.staged_bytes);
    c->costs.state_bytes = s->plan.state_bytes;
    began = ch__now_ns();
    if (rc == CH_OK)
        ch__staging_copy(&c->staging, c->team, &s->plan);
    c->costs.copy_ns = ch__now_ns() - began;
    if (rc == CH_OK && s->plan.unstaged_bytes > 0 && !c->has_logged_unstaged) {
        c->has_logged_unstaged = true;
        ch__log(CH_LOG_WARNING, "checkpoint",
                "%s: staging_bytes is smaller than the state, so the program waits in each "
                "save while %lld bytes are written",
                s->prefix, (long long)s->plan.unstaged_bytes);
    }
    if (rc == CH_OK && begins_marks(t->request))
        ch__save_marks_begin(t->request->marks, &s->tree);
    return rc;
}

/* Takes the cuts that are left, one inside the other, and copies the state in the last. */
static ch_status take_cuts(void *arg)
{
    taking      *t = arg;
    ch_save_cut *cut;
    bool         begins = begins_marks(t->request);
    ch_status    rc = CH_OK;

    if (t->n_taken == t->save->n_cuts)
        return copy_state(t);
    cut = &t->save->cut[t->n_taken++];
    if (begins)
        rc = ch__save_marks_own(t->request->marks, cut->strategy);
    if (rc != CH_OK)
        return rc;
    return (t->request->is_prepared ? ch__cut_take_prepared : ch__cut_take)(
        cut->strategy, begins ? CH_MARKS_BEGIN : CH_MARKS_KEEP, take_cuts, t, &cut->cut);
}

static ch_status take_state(taking *t)
{
    ch_checkpoint *c = t->c;
    ch_status      rc = ch__tree_build(c->n_added, c->added, &c->counter, &t->save->tree);

    if (rc == CH_OK)
        rc = ch__save_list_cuts(&t->save->tree, &t->save->n_cuts, &t->save->cut);
    return rc == CH_OK ? take_cuts(t) : rc;
}

ch_status ch__checkpoint_save_at(ch_checkpoint *c, const ch_save_request *request,
                                 const ch_write_options *opt)
{
    const ch_write_options none = {.wait = false};
    int64_t                began = request->began_ns > 0 ? request->began_ns : ch__now_ns();
    ch_save               *s = NULL;
    ch_status              rc = ch__checkpoint_check_context("checkpoint save");

    opt = opt != NULL ? opt : &none;
    if (rc == CH_OK && opt->staging_bytes < 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "checkpoint: staging_bytes is negative");
    if (rc == CH_OK)
        rc = ch__checkpoint_collect(c, true);
    if (rc == CH_OK)
        rc = check_prefix(request->prefix, opt->replace);
    if (rc != CH_OK)
        return rc;
    s = ch__calloc(1, sizeof(*s));
    if (s != NULL)
        s->prefix = ch__strdup(request->prefix);
    if (s == NULL || s->prefix == NULL) {
        ch__free(s);
        return ch__fail_memory("a checkpoint");
    }
    s->sync = opt->sync != CH_OFF;
    s->replace = opt->replace;
    s->staging = &c->staging;
    s->memory = &c->write_memory;
    s->limit = c->limit;
    s->committed = request->committed;
    s->arg = request->arg;
    rc = take_state(&(taking){.c = c, .save = s, .request = request, .opt = opt});
    if (rc == CH_OK)
        rc = ch__save_start(s);
    if (rc != CH_OK) {
        ch__save_free(s);
        return rc;
    }
    c->save = s;
    c->costs.n_saves++;
    if (opt->wait)
        rc = ch__checkpoint_collect(c, true);
    c->costs.blocked_ns = ch__now_ns() - began;
    return rc;
}

ch_status ch_checkpoint_write(ch_checkpoint *c, const char *prefix, const ch_write_options *opt)
{
    ch_status rc =
        ch__check_not_null("checkpoint write", "the checkpoint", c, "prefix", prefix);

    if (rc != CH_OK)
        return rc;
    return ch__checkpoint_save_at(c, &(ch_save_request){.prefix = prefix, .step = -1}, opt);
}

/* Makes a checkpoint the newest of its directory (CK-2). The state file of a plain save names
 * no other checkpoint and has no times (CM-9). */
static ch_status update_state_file(void *arg, const ch_save *s)
{
    const char *prefix = s->prefix, *name = strrchr(prefix, '/');
    char       *directory = ch__strdup(name != NULL ? prefix : ".");
    ch_status   rc;

    (void)arg;
    if (directory == NULL)
        return ch__fail_memory(prefix);
    if (name != NULL)
        directory[name > prefix ? name - prefix : 1] = '\0';
    name = name != NULL ? name + 1 : prefix;
    rc = ch__state_file_write(
        directory, &(ch_state_file){.latest = name, .n = 1, .path = &name}, !s->sync);
    ch__free(directory);
    return rc;
}

ch_status ch_checkpoint_save(ch_checkpoint *c, const char *prefix, const ch_write_options *opt,
                             char *path, size_t size)
{
    ch_status rc = ch__check_not_null("checkpoint save", "the checkpoint", c, "prefix", prefix);
    int64_t   began = ch__now_ns();
    char     *numbered;
    size_t    need;

    if (rc == CH_OK)
        rc = ch__ckpt_check_name(prefix);
    if (rc != CH_OK)
        return rc;
    need = strlen(prefix) + 24;
    numbered = ch__malloc(need);
    if (numbered == NULL)
        return ch__fail_memory("a checkpoint");
    snprintf(numbered, need, "%s-%lld", prefix, (long long)c->counter + 1);
    if (path != NULL && strlen(numbered) >= size)
        rc = ch__fail(CH_INVALID_ARGUMENT,
                      "checkpoint save: the path %s does not fit into %zu bytes", numbered,
                      size);
    if (rc == CH_OK)
        rc = ch__checkpoint_collect(c, true);
    if (rc == CH_OK) {
        c->counter++;
        rc = ch__checkpoint_save_at(c,
                                    &(ch_save_request){.prefix = numbered,
                                                       .began_ns = began,
                                                       .step = -1,
                                                       .committed = update_state_file},
                                    opt);
    }
    if (rc == CH_OK && path != NULL)
        snprintf(path, size, "%s", numbered);
    ch__free(numbered);
    return rc;
}

/* ---- the plan ---- */

ch_status ch__checkpoint_prepare(ch_checkpoint *c, int64_t staging_bytes)
{
    ch_tree   tree = {.n_nodes = 0};
    int64_t   bytes = 0;
    ch_status rc = ch__tree_build(c->n_added, c->added, &c->counter, &tree);

    for (int i = 0; i < tree.n_values && rc == CH_OK; i++) {
        ch_var *v = tree.value[i].var;

        /* Each item may begin at the next multiple of 4096. */
        if (v != NULL && ch__saved_is_bytes(v))
            bytes += ch__ckpt_bytes(v->dtype, v->shape) + 4096;
    }
    ch__tree_drop(&tree);
    if (staging_bytes > 0)
        bytes = ch__min(bytes, staging_bytes);
    return rc == CH_OK && !ch__checkpoint_is_writing(c)
               ? ch__staging_reserve(&c->staging, ch__checkpoint_team(c), bytes)
               : rc;
}

static double milliseconds(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Adds a row of the plan. `number` is that of values; -1: none. */
static void add_row(ch_text *o, const char *name, int number, int64_t bytes)
{
    char text[16] = "";

    if (number >= 0)
        snprintf(text, sizeof(text), "%d", number);
    ch__text_add(o, "%-27s %10s %15lld\n", name, text, (long long)bytes);
}

int ch_checkpoint_print_plan(ch_checkpoint *c, char *text, size_t size)
{
    ch_text o = ch__text(text, size);
    ch_tree tree = {.n_nodes = 0};
    int64_t local = 0, remote = 0, full = c != NULL ? c->costs.full_bytes : 0;
    int     n_local = 0, n_remote = 0;

    if (c == NULL) {
        ch__text_add(&o, "NULL");
        return ch__text_length(&o);
    }
    if (ch__tree_build(c->n_added, c->added, &c->counter, &tree) != CH_OK ||
        (full == 0 && ch__save_plan_estimate(&tree, &full) != CH_OK))
        ch__text_add(&o, "the plan cannot be made: %s\n", ch_error_message());
    for (int i = 0; i < tree.n_values; i++) {
        const ch_var *v = tree.value[i].var;
        int64_t       bytes = ch__ckpt_bytes(v->dtype, v->shape);

        if (ch__saved_is_remote(v)) {
            remote += bytes;
            n_remote++;
        } else {
            local += bytes;
            n_local++;
        }
    }
    ch__tree_drop(&tree);
    ch__text_add(&o, "%-27s %10s %15s\n", "values", "number", "bytes");
    add_row(&o, "variables of this process", n_local, local);
    add_row(&o, "variables on servers", n_remote, remote);
    if (c->costs.state_bytes > 0) /* known since the first save */
        add_row(&o, "positions, other state", -1, c->costs.state_bytes);
    add_row(&o,
            c->costs.full_bytes > 0 ? "the last full save wrote"
                                    : "a full save writes at least",
            -1, full);
    if (c->costs.n_deltas > 0)
        add_row(&o, "the last delta wrote", -1, c->costs.delta_bytes);
    add_row(&o, "a save holds in memory", -1, c->staging.bytes > 0 ? c->staging.bytes : local);
    /* A server copies the variables that change while the save is written, at most all. */
    if (n_remote > 0)
        add_row(&o, "servers hold for it", -1, remote);
    ch__text_add(&o,
                 "saves: %lld, of these deltas: %lld; skipped because another was being "
                 "written: %lld; failed: %lld\n",
                 (long long)c->costs.n_saves, (long long)c->costs.n_deltas,
                 (long long)c->costs.n_skipped, (long long)c->costs.n_failed);
    if (c->costs.n_saves > 0)
        ch__text_add(
            &o,
            "last save: the program waited %.1f ms, of these %.1f ms for the copy; written "
            "in %.1f ms\n",
            milliseconds(c->costs.blocked_ns), milliseconds(c->costs.copy_ns),
            milliseconds(c->costs.write_ns));
    return ch__text_length(&o);
}
