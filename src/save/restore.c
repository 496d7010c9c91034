/* save/restore.c -- restoring: from the index of a checkpoint to the objects of a program.
 *
 * A restore has two phases. The first reads and checks everything: the index, the match of
 * values and objects, dtypes and shapes, and the checksums of all data. The second changes the
 * objects.
 *
 *   1. Variables of this process. The first phase reads their values into staging memory,
 *      which the saves of the checkpoint use too. The second phase copies them, which cannot
 *      fail. The value that workers start with is read into memory of its own, because the
 *      strategy keeps it.
 *   2. Variables on parameter servers. The first phase only verifies their values. The second
 *      phase takes snapshots of the servers (restoring.undo), and reads the values from the
 *      files before it copies those of 1. If a read fails, the variables are put back from the
 *      snapshots.
 *   3. Masters without a value in the checkpoint (restoring.master). Their values are computed
 *      before the copy.
 *
 * So a restore that fails has changed nothing, with one exception. A value that does not fit
 * into staging memory is read like those of 2, but without a snapshot, and a server may have no
 * memory for a snapshot. If a read fails then, some variables have changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/directory.h"
#include "save/restored.h"
#include "strategy/strategy.h"
#include "tensor/tensor.h"
#include "train/model.h"
#include "train/parts.h"

/* A value that is not a variable, read from the file. */
typedef struct read_state {
    int            node;   /* of the tree */
    ch_tuple      *value;  /* a leaf for each attribute of the node */
    void          *before; /* position that an iterator had before the restore; ch_bytes_free */
    size_t         before_bytes;
    ch_saved_pass *pass; /* of a per-worker dataset; continued when nothing can fail */
} read_state;

/* A master of a 16-bit variable, and the value that it gets. */
typedef struct new_master {
    ch_var    *var; /* referenced */
    ch_tensor *value;
} new_master;

typedef struct restoring {
    ch_checkpoint *c;
    int64_t        staging_bytes; /* limit; 0: none */
    int64_t        held_bytes;    /* of values of this process that are in memory */
    /* For each value of the tree, owned: a tensor over staging memory; of a per-worker variable
     * on workers, a tensor with its own memory; or NULL. */
    ch_tensor  **staged;
    int          n_masters, cap_masters;
    new_master  *master;
    ch_restored *r;
    ch_tree      tree;
    int          n_states;
    read_state  *state;
    int64_t      state_bytes; /* memory that values of `state` may still take */
    int         *n_built;     /* for each node of the tree: variables of its optimizer before */
    bool         is_own_error; /* the error is not one of the files */
    ch_fault     fault;        /* first error of the team */
    /* The strategies with servers; the cut is the values before the restore, or NULL. */
    int          n_undo;
    ch_save_cut *undo;
} restoring;

/* ---- reading and checking ---- */

/* Values that are not variables may take the memory of the files and STATE_BYTES. */
enum { STATE_BYTES = 15 << 20 };

static int64_t bytes_of_files(const ch_ckpt *file)
{
    int64_t sum = ch__ckpt_index_bytes(file);

    for (int i = 0; i < ch__ckpt_n_files(file); i++)
        if (ch__ckpt_file_bytes(file, i) > 0)
            sum += ch__ckpt_file_bytes(file, i);
    return ch__ckpt_base(file) != NULL ? sum + bytes_of_files(ch__ckpt_base(file)) : sum;
}

enum { PLACE_BYTES = PATH_MAX + CH_CKPT_MAX_NAME + 64 };

/* Prints the file and the byte at which a tensor begins. */
static void print_place(ch_ckpt *file, int entry, char text[PLACE_BYTES])
{
    const char   *prefix = ch__ckpt_prefix(file);
    char          path[PATH_MAX];
    ch_ckpt_entry e;
    ch_ckpt_part  part = {.offset = 0};

    ch__ckpt_entry(file, entry, &e);
    snprintf(path, sizeof(path), "%s.index", prefix);
    if (e.n_parts > 0) {
        ch__ckpt_part(file, entry, 0, &part);
        ch__ckpt_data_path(prefix, part.file, ch__ckpt_n_files(file), path, sizeof(path));
    }
    snprintf(text, PLACE_BYTES, "%s: tensor \"%s\" at byte %lld", path, e.name,
             (long long)part.offset);
}

static ch_status fail_tensor(ch_ckpt *file, int entry, const char *problem)
{
    char place[PLACE_BYTES];

    print_place(file, entry, place);
    return ch__fail(CH_DATA_LOSS, "%s: %s", place, problem);
}

/* Checks that the files hold all bytes of a tensor of numbers. */
static ch_status check_stored(ch_ckpt *file, int entry, const ch_ckpt_entry *e)
{
    return e->dtype == CH_STR || e->dtype == CH_DTYPE_COUNT ||
                   ch__ckpt_bytes(e->dtype, e->shape) <= ch__ckpt_stored_bytes(file, entry)
               ? CH_OK
               : fail_tensor(file, entry, "has fewer bytes than its shape needs");
}

/* Reads a tensor of the file. */
static ch_status read_tensor(restoring *x, int entry, ch_tensor **out)
{
    ch_ckpt      *file = x->r->file;
    ch_ckpt_entry e;
    ch_str       *text = NULL;
    ch_tensor    *t = NULL;
    ch_status     rc;

    ch__ckpt_entry(file, entry, &e);
    rc = check_stored(file, entry, &e);
    if (rc != CH_OK)
        return rc;
    x->state_bytes -= e.dtype < CH_DTYPE_COUNT ? ch__ckpt_bytes(e.dtype, e.shape) : 0;
    x->state_bytes -= e.dtype == CH_STR ? e.bytes : 0;
    if (x->state_bytes < 0)
        return fail_tensor(file, entry, "the states need too much memory for these files");
    if (e.dtype == CH_STR) {
        rc = ch__ckpt_read_strings(file, e.name, &text);
        if (rc != CH_OK)
            return ch__failed_at_limit() ? fail_tensor(file, entry, "too many strings") : rc;
        rc = ch_tensor_wrap(CH_STR, e.shape, text, ch__free, text, &t);
        if (rc != CH_OK)
            ch__free(text);
    } else {
        rc = e.dtype < CH_DTYPE_COUNT ? ch_tensor_new(e.dtype, e.shape, &t) : CH_OK;
        if (rc == CH_OK)
            rc = ch__ckpt_read(file, e.name, NULL, t != NULL ? t->data : NULL);
    }
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

/* Reads all attributes of a node of the object graph as a tuple. */
static ch_status read_attributes(restoring *x, int node, ch_tuple **out)
{
    ch_restored          *r = x->r;
    const ch_object_node *from = &r->match.graph.node[node];
    size_t                n = (size_t)from->n_values;
    ch_value            **value = ch__calloc(n + 1, sizeof(ch_value *));
    const char          **name = ch__calloc(n + 1, sizeof(char *));
    ch_status rc = value != NULL && name != NULL ? CH_OK : ch__fail_memory("a restore");

    for (size_t i = 0; i < n && rc == CH_OK; i++) {
        int        entry = ch__ckpt_find(r->file, from->value[i].key);
        ch_tensor *t = NULL;

        name[i] = from->value[i].name;
        if (entry < 0)
            rc = ch__fail(CH_DATA_LOSS,
                          "%s.index: the value \"%s\" of its object graph is not "
                          "in the index",
                          r->prefix, from->value[i].key);
        if (rc == CH_OK)
            rc = read_tensor(x, entry, &t);
        if (rc == CH_OK)
            rc = ch_value_new(CH_PLAIN, 1, &t, &value[i]);
        if (rc == CH_OK)
            r->match.is_used[entry] = true;
        ch_tensor_unref(t);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new((int)n, value, name, out);
    for (size_t i = 0; i < n && value != NULL; i++)
        ch_value_unref(value[i]);
    ch__free(value);
    ch__free(name);
    return rc;
}

/* Returns true if objects of this kind have values that are not variables. */
static bool has_state(const ch_saved_node *n)
{
    return n->kind > CH_SAVED_VAR || (n->kind == CH_SAVED_LAYER && n->added != NULL);
}

/* Returns the attribute that is a count in the state of such an object; NULL: none. */
static const char *count_of(ch_saved_kind kind)
{
    return kind == CH_SAVED_LAYER      ? CH_ATTRIBUTE_STEPS
           : kind == CH_SAVED_FUNCTION ? CH_ATTRIBUTE_RUNS
           : kind == CH_SAVED_COUNTER  ? CH_ATTRIBUTE_VALUE
                                       : NULL;
}

static int64_t number_of(const ch_tuple *t, const char *name)
{
    const ch_value *v = ch_tuple_get(t, name);
    ch_tensor      *x = v != NULL ? ch_value_at(v, 0) : NULL;

    return x != NULL && ch_tensor_dtype(x) == CH_I64 && ch_tensor_count(x) == 1
               ? *(const int64_t *)ch_tensor_data(x)
               : 0;
}

/* Checks the range of a count, to which the program will add. */
static ch_status check_count(const restoring *x, const read_state *s)
{
    const char *name = count_of(x->tree.node[s->node].kind);
    int64_t     n = name != NULL ? number_of(s->value, name) : 0;
    char        problem[80];

    if (n >= 0 && n <= CH_SAVED_MAX)
        return CH_OK;
    snprintf(problem, sizeof(problem), "is %lld, want 0 to %lld", (long long)n,
             (long long)CH_SAVED_MAX);
    return fail_tensor(
        x->r->file, ch__match_value(&x->r->match, x->r->match.node_of[s->node], name), problem);
}

static ch_status read_states(restoring *x)
{
    ch_status rc = CH_OK;

    x->state_bytes = STATE_BYTES + bytes_of_files(x->r->file);
    x->state = ch__calloc((size_t)x->tree.n_nodes, sizeof(*x->state));
    if (x->state == NULL)
        return ch__fail_memory("a restore");
    for (int i = 0; i < x->tree.n_nodes && rc == CH_OK; i++) {
        const ch_saved_node *live = &x->tree.node[i];
        int                  node = has_state(live) ? x->r->match.node_of[i] : -1;

        if (node < 0 || x->r->match.graph.node[node].n_values == 0)
            continue;
        x->state[x->n_states].node = i;
        rc = read_attributes(x, node, &x->state[x->n_states].value);
        if (rc != CH_OK)
            break;
        rc = check_count(x, &x->state[x->n_states++]);
    }
    return rc;
}

/* Compares dtype and shape of a variable with its value in the checkpoint (CK-9). */
static ch_status check_value(const ch_restored *r, const ch_saved_value *v, int entry)
{
    char          have[160], want[160];
    ch_ckpt_entry e;

    ch__ckpt_entry(r->file, entry, &e);
    if (e.dtype == v->var->dtype && ch_shape_equal(e.shape, v->var->shape))
        return check_stored(r->file, entry, &e);
    ch_tensor_spec_print(&(ch_tensor_spec){.dtype = v->var->dtype, .shape = v->var->shape},
                         want, sizeof(want));
    if (e.dtype < CH_DTYPE_COUNT)
        ch_tensor_spec_print(&(ch_tensor_spec){.dtype = e.dtype, .shape = e.shape}, have,
                             sizeof(have));
    else
        snprintf(have, sizeof(have), "of TensorFlow's dtype %d, which Cohort does not have",
                 e.dtype_number);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "restore of %s: \"%s\" is %s in the checkpoint, but the variable is %s",
                    r->prefix, e.name, have, want);
}

static ch_status check_values(restoring *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->tree.n_values && rc == CH_OK; i++)
        if (x->r->match.entry_of[i] >= 0)
            rc = check_value(x->r, &x->tree.value[i], x->r->match.entry_of[i]);
    return rc;
}

/* Returns true if value i of the tree can be read into staging memory. */
static bool can_stage(const restoring *x, int i)
{
    const ch_var *v = x->tree.value[i].var;

    return v != NULL && ch__var_is_local(v) && v->dtype != CH_STR &&
           x->r->match.entry_of[i] >= 0;
}

/* Returns true if workers have copies of the variable, which a restore starts anew. */
static bool has_worker_copies(const ch_var *v)
{
    return v->per_worker && v->strategy->var_ops->restart != NULL;
}

/* Makes tensors for the values that workers start with. */
static ch_status stage_worker_values(restoring *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->tree.n_values && rc == CH_OK; i++) {
        const ch_var *v = x->tree.value[i].var;

        if (can_stage(x, i) && has_worker_copies(v))
            rc = ch_tensor_new_on(v->layout.device[0], v->dtype, v->shape, &x->staged[i]);
    }
    return rc;
}

/* Makes tensors in staging memory for the variables of this process, as many as its limit
 * allows. The others are read from the files in the second phase. */
static ch_status plan_staging(restoring *x)
{
    int64_t   end = 0, limit = x->staging_bytes > 0 ? x->staging_bytes : INT64_MAX;
    ch_status rc = CH_OK;

    x->staged = ch__calloc((size_t)x->tree.n_values + 1, sizeof(ch_tensor *));
    if (x->staged == NULL)
        return ch__fail_memory("a restore");
    rc = stage_worker_values(x);
    for (int pass = 0; pass < 2 && rc == CH_OK; pass++) {
        if (pass == 1 &&
            ch__staging_reserve(&x->c->staging, ch__checkpoint_team(x->c), end) != CH_OK)
            return CH_OK;
        end = 0;
        for (int i = 0; i < x->tree.n_values && rc == CH_OK; i++) {
            const ch_var *v = x->tree.value[i].var;
            int64_t       bytes = can_stage(x, i) ? ch__ckpt_bytes(v->dtype, v->shape) : 0;

            if (!can_stage(x, i) || has_worker_copies(v) || bytes > limit - end)
                continue;
            if (pass == 1)
                rc = ch_tensor_wrap(v->dtype, v->shape, x->c->staging.at + end, NULL, NULL,
                                    &x->staged[i]);
            end = ch__round_up(end + bytes, CH_ALIGN);
        }
    }
    x->held_bytes = end;
    return rc;
}

/* Reads value i of the tree if it is staged; the checksums are verified on the way. */
static void read_value(void *arg, int i)
{
    restoring    *x = arg;
    ch_ckpt_entry e;
    ch_status     rc;

    if (x->staged[i] == NULL || ch__fault_is_set(&x->fault))
        return;
    ch__ckpt_entry(x->r->file, x->r->match.entry_of[i], &e);
    rc = ch__ckpt_read(x->r->file, e.name, NULL, x->staged[i]->data);
    if (rc != CH_OK)
        (void)ch__fault_record(&x->fault, rc, -1, NULL);
}

/* Verifies a tensor of the file, unless it was read. Those that are left over are verified too:
 * they may wait for variables. */
static void verify_entry(void *arg, int i)
{
    restoring *x = arg;
    ch_status  rc = ch__fault_is_set(&x->fault) ? CH_OK : ch__ckpt_verify(x->r->file, i);

    if (rc != CH_OK)
        (void)ch__fault_record(&x->fault, rc, -1, NULL);
}

static ch_status read_values(restoring *x)
{
    ch_status rc = plan_staging(x);

    if (rc != CH_OK)
        return rc;
    ch__team_run(x->c->team, x->tree.n_values, read_value, x);
    ch__team_run(x->c->team, ch__ckpt_count(x->r->file), verify_entry, x);
    return ch__fault_raise(&x->fault);
}

/* ---- changing ---- */

static ch_str text_of(const ch_tuple *t, const char *name)
{
    const ch_value *v = ch_tuple_get(t, name);
    ch_tensor      *x = v != NULL ? ch_value_at(v, 0) : NULL;

    return x != NULL && ch_tensor_dtype(x) == CH_STR && ch_tensor_count(x) == 1
               ? *(const ch_str *)ch_tensor_data(x)
               : (ch_str){NULL, 0};
}

/* Moves an iterator, or reads the saved pass of a per-worker dataset. */
static ch_status set_position(restoring *x, read_state *s)
{
    const ch_saved_node *node = &x->tree.node[s->node];
    ch_str               position = text_of(s->value, CH_ATTRIBUTE_POSITION);
    void                *object = node->object;
    char                 place[PLACE_BYTES];
    int                  entry;
    ch_status            rc = CH_OK;

    if (node->kind == CH_SAVED_PER_WORKER) {
        rc = ch__saved_pass_read(object, position.data, position.size, &s->pass);
    } else if (node->kind == CH_SAVED_ITERATOR) {
        rc = ch_iterator_save(object, &s->before, &s->before_bytes);
        if (rc == CH_OK)
            rc = ch_iterator_restore(object, position.data, position.size);
    }
    if (rc == CH_OK)
        return CH_OK;
    /* The bytes were verified, so the data differs from that of the saved program. */
    x->is_own_error = true;
    entry = ch__match_value(&x->r->match, x->r->match.node_of[s->node], CH_ATTRIBUTE_POSITION);
    if (entry >= 0)
        print_place(x->r->file, entry, place);
    return ch__fail_at(rc, "restore of %s: data \"%s\"", entry >= 0 ? place : x->r->prefix,
                       node->path);
}

static ch_status set_positions(restoring *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->n_states && rc == CH_OK; i++)
        rc = set_position(x, &x->state[i]);
    return rc;
}

/* Sets a variable from the files. */
static void set_var_from_file(void *arg, int i)
{
    restoring      *x = arg;
    ch_var         *v = x->tree.value[i].var;
    int             entry = x->r->match.entry_of[i];
    ch_value_source source;
    ch_status       rc;

    if (v == NULL || entry < 0 || x->staged[i] != NULL || ch__fault_is_set(&x->fault))
        return;
    ch__ckpt_verify_again(x->r->file, entry); /* the files may have changed since */
    source = ch__restored_source(x->r, entry);
    rc = ch__var_write_from(v, &source);
    if (rc != CH_OK)
        (void)ch__fault_record(&x->fault, rc, -1, NULL);
}

/* Sets a variable to its value in memory. */
static void set_staged_var(void *arg, int i)
{
    restoring *x = arg;
    ch_var    *v = x->tree.value[i].var;
    ch_status  rc = CH_OK;

    if (x->staged[i] == NULL)
        return;
    if (has_worker_copies(v))
        v->strategy->var_ops->restart(v, x->staged[i]);
    else
        rc = v->strategy->var_ops->write(v, NULL, x->staged[i]);
    if (rc != CH_OK)
        (void)ch__fault_record(&x->fault, rc, -1, NULL);
}

/* Returns the tensor of the file that the variable was set from; -1: none. */
static int entry_of_var(const restoring *x, const ch_var *v)
{
    int node = ch__tree_find(&x->tree, v);

    return node >= 0 ? x->r->match.entry_of[x->tree.node[node].first_value] : -1;
}

/* Computes the value that master f gets when its leader gets `value`, if the limit of memory
 * allows it. */
static ch_status prepare_master(restoring *x, ch_var *f, ch_tensor *value)
{
    int64_t   bytes = ch__ckpt_bytes(f->dtype, f->shape);
    ch_status rc;

    if (x->staging_bytes > 0 && bytes > x->staging_bytes - x->held_bytes)
        return CH_OK;
    if (!ch__grow((void **)&x->master, &x->cap_masters, x->n_masters + 1, sizeof(*x->master)))
        return ch__fail_memory("a restore");
    rc = ch__var_follower_value(f, NULL, value, &x->master[x->n_masters].value);
    if (rc != CH_OK)
        return rc;
    x->held_bytes += bytes;
    x->master[x->n_masters++].var = ch_var_ref(f);
    return CH_OK;
}

/* Computes the values of the masters that have none of their own in the checkpoint, and whose
 * leaders are staged. */
static ch_status prepare_masters(restoring *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->tree.n_values; i++) {
        ch_var *v = x->staged[i] != NULL ? x->tree.value[i].var : NULL, *f;

        if (v == NULL)
            continue;
        for (f = ch__var_next_follower(v, NULL); f != NULL; f = ch__var_next_follower(v, f))
            if (rc == CH_OK && entry_of_var(x, f) < 0)
                rc = prepare_master(x, f, x->staged[i]);
    }
    return rc;
}

static bool is_prepared(const restoring *x, const ch_var *master)
{
    for (int i = 0; i < x->n_masters; i++)
        if (x->master[i].var == master)
            return true;
    return false;
}

/* Sets the masters that have no value of their own in the checkpoint. */
static ch_status set_masters(restoring *x)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < x->n_masters && rc == CH_OK; i++) {
        ch_var *f = x->master[i].var;

        rc = f->strategy->var_ops->write(f, NULL, x->master[i].value);
    }
    for (int i = 0; i < x->tree.n_values && rc == CH_OK; i++) {
        ch_var *v = x->r->match.entry_of[i] >= 0 ? x->tree.value[i].var : NULL;
        ch_var *master = v != NULL ? ch__var_next_follower(v, NULL) : NULL;

        if (master != NULL && entry_of_var(x, master) < 0 && !is_prepared(x, master))
            rc = ch__var_update_followers(v);
        ch_var_unref(master);
    }
    return rc;
}

static ch_status set_vars(restoring *x)
{
    ch_status rc;

    ch__team_run(x->c->team, x->tree.n_values, set_var_from_file, x);
    rc = ch__fault_raise(&x->fault);
    if (rc == CH_OK) {
        ch__team_run(x->c->team, x->tree.n_values, set_staged_var, x);
        rc = ch__fault_raise(&x->fault);
    }
    return rc == CH_OK ? set_masters(x) : rc;
}

/* Creates the variables of an optimizer whose values are in the file, if the variables that it
 * updates exist. So the program can read the iterations and the rate before the first step.
 * With accumulation (a slot "sum") the first step creates them, because it knows the lists. */
static ch_status build_optimizer(restoring *x, int node)
{
    const ch_match       *m = &x->r->match;
    const ch_object_node *from = &m->graph.node[m->node_of[node]];
    ch_var              **var = ch__malloc(((size_t)from->n_slots + 1) * sizeof(ch_var *));
    int                   n = 0;
    ch_status             rc = var != NULL ? CH_OK : ch__fail_memory("a restore");

    for (int i = 0; i < from->n_slots && rc == CH_OK && n >= 0; i++) {
        int  live = m->live[from->slot[i].variable];
        bool is_new = live >= 0 && x->tree.node[live].kind == CH_SAVED_VAR;

        for (int k = 0; k < n; k++)
            is_new = is_new && var[k] != x->tree.node[live].object;
        if (is_new)
            var[n++] = x->tree.node[live].object;
        if (strncmp(from->slot[i].name, "sum", 3) == 0)
            n = -1;
    }
    if (rc == CH_OK && n > 0)
        rc = ch_optimizer_build(x->tree.node[node].object, n, var);
    ch__free(var);
    return rc;
}

static ch_status build_optimizers(restoring *x)
{
    ch_status rc = CH_OK;

    x->n_built = ch__calloc((size_t)x->tree.n_nodes, sizeof(*x->n_built));
    if (x->n_built == NULL)
        return ch__fail_memory("a restore");
    for (int i = 0; i < x->tree.n_nodes; i++)
        if (x->tree.node[i].kind == CH_SAVED_OPTIMIZER) {
            ch_var *const *var;

            x->n_built[i] = ch_optimizer_vars(x->tree.node[i].object, &var);
        }
    for (int i = 0; i < x->tree.n_nodes && rc == CH_OK; i++)
        if (x->tree.node[i].kind == CH_SAVED_OPTIMIZER && x->r->match.node_of[i] >= 0)
            rc = build_optimizer(x, i);
    return rc;
}

/* ---- after an error ---- */

/* Takes snapshots of the variables on servers. */
static ch_status prepare_undo(restoring *x)
{
    ch_status rc = ch__save_list_cuts(&x->tree, &x->n_undo, &x->undo);

    for (int i = 0; i < x->n_undo && rc == CH_OK; i++) {
        rc = ch__cut_take_now(x->undo[i].strategy, &x->undo[i].cut);
        if (rc == CH_RESOURCE_EXHAUSTED)
            rc = CH_OK;
    }
    return rc;
}

/* The value of a variable before the restore. */
typedef struct old_value {
    const ch_cut *cut;
    ch_var       *var;
} old_value;

static ch_status read_old_value(void *arg, const ch_region *region, void *to)
{
    const old_value *v = arg;

    return ch__cut_read(v->cut, v->var, region, to);
}

/* Puts a variable on servers back. An error is logged. */
static void undo_var(const restoring *x, ch_var *v)
{
    old_value       old = {ch__save_cut_of(x->n_undo, x->undo, v), v};
    ch_value_source source = {.name = v->name,
                              .dtype = v->dtype,
                              .shape = v->shape,
                              .read = read_old_value,
                              .arg = &old};

    if (old.cut != NULL && ch__var_write_from(v, &source) != CH_OK)
        ch__log(CH_LOG_ERROR, "checkpoint", "%s", ch_error_message());
}

/* Puts back the variables on servers, those of optimizers and the positions of iterators after
 * error `rc`, and returns it. Errors of that are logged. */
static ch_status undo(const restoring *x, ch_status rc)
{
    ch_fault first = {.code = CH_OK};

    (void)ch__fault_record(&first, rc, -1, NULL);
    for (int i = 0; i < x->tree.n_nodes && x->n_built != NULL; i++)
        if (x->tree.node[i].kind == CH_SAVED_OPTIMIZER)
            ch__optimizer_drop_vars(x->tree.node[i].object, x->n_built[i]);
    for (int i = 0; i < x->n_states; i++) {
        const read_state *s = &x->state[i];

        if (s->before != NULL && ch_iterator_restore(x->tree.node[s->node].object, s->before,
                                                     s->before_bytes) != CH_OK)
            ch__log(CH_LOG_ERROR, "checkpoint", "%s", ch_error_message());
    }
    for (int i = 0; i < x->tree.n_values; i++) {
        ch_var *v = x->r->match.entry_of[i] >= 0 ? x->tree.value[i].var : NULL;

        if (v == NULL || !ch__saved_is_remote(v))
            continue;
        undo_var(x, v);
        for (ch_var *f = ch__var_next_follower(v, NULL); f != NULL;
             f = ch__var_next_follower(v, f))
            undo_var(x, f);
    }
    return ch__fault_raise(&first);
}

/* Changes optimizers, iterators and variables, or, after an error, none of them. */
static ch_status change(restoring *x)
{
    ch_status rc = prepare_undo(x);

    if (rc == CH_OK) {
        rc = build_optimizers(x);
        if (rc == CH_OK)
            rc = prepare_masters(x);
        if (rc == CH_OK)
            rc = set_positions(x);
        if (rc == CH_OK)
            rc = set_vars(x);
        if (rc != CH_OK)
            rc = undo(x, rc);
    }
    for (int i = 0; i < x->n_states && rc == CH_OK; i++)
        if (x->state[i].pass != NULL) {
            ch__saved_pass_continue(x->state[i].pass);
            x->state[i].pass = NULL;
        }
    for (int i = 0; i < x->n_undo; i++) {
        if (rc == CH_OK)
            ch__cut_name_checkpoint(x->undo[i].strategy, x->r->prefix);
        ch__cut_end(x->undo[i].cut);
    }
    ch__free(x->undo);
    return rc;
}

/* Lists the layers, in which find() looks for variables. */
static ch_status list_layers(restoring *x)
{
    ch_restored *r = x->r;

    r->layer = ch__calloc((size_t)x->tree.n_nodes + 1, sizeof(*r->layer));
    if (r->layer == NULL)
        return ch__fail_memory("a restore");
    for (int i = 0; i < x->tree.n_nodes; i++)
        if (x->tree.node[i].kind == CH_SAVED_LAYER && r->match.node_of[i] >= 0) {
            r->layer[r->n_layers].layer = x->tree.node[i].object;
            r->layer[r->n_layers++].node = r->match.node_of[i];
        }
    return CH_OK;
}

static ch_status set_state(restoring *x, const read_state *s)
{
    const ch_saved_node *node = &x->tree.node[s->node];
    const char          *name = count_of(node->kind);
    bool                 has_count = name != NULL && ch_tuple_get(s->value, name) != NULL;
    int64_t              count = has_count ? number_of(s->value, name) : 0;
    uint64_t             mark;
    ch_status            rc = CH_OK;

    if (node->kind == CH_SAVED_LAYER && has_count) {
        ch__model_set_steps(node->added->owner, count);
    } else if (node->kind == CH_SAVED_FUNCTION && has_count) {
        rc = ch_function_set_runs(node->object, count);
    } else if (node->kind == CH_SAVED_COUNTER && has_count) {
        x->c->counter = count;
    } else if (node->kind == CH_SAVED_STATE && node->added->ops->load != NULL) {
        mark = ch__fail_mark();
        rc = ch__fail_since(mark, node->added->ops->load(node->object, s->value));
        x->is_own_error = rc != CH_OK;
        if (rc != CH_OK)
            rc = ch__fail_at(rc, "restore of %s: loading \"%s\"", x->r->prefix, node->path);
    }
    return rc;
}

/* ---- the call ---- */

static ch_status run(restoring *x)
{
    ch_status rc = ch__tree_build(x->c->n_added, x->c->added, &x->c->counter, &x->tree);

    if (rc == CH_OK)
        rc = ch__match_make(x->r->file, &x->tree, NULL, &x->r->match);
    if (rc == CH_OK)
        rc = check_values(x);
    if (rc == CH_OK)
        rc = read_values(x);
    if (rc == CH_OK)
        rc = read_states(x);
    if (rc == CH_OK)
        rc = list_layers(x);
    if (rc == CH_OK)
        rc = ch__restored_wait(x->r);
    if (rc == CH_OK)
        rc = change(x);
    for (int i = 0; i < x->n_states && rc == CH_OK; i++)
        rc = set_state(x, &x->state[i]);
    for (int i = 0; i < x->n_states; i++) {
        ch_tuple_unref(x->state[i].value);
        ch_bytes_free(x->state[i].before);
        ch__saved_pass_drop(x->state[i].pass);
    }
    for (int i = 0; x->staged != NULL && i < x->tree.n_values; i++)
        ch_tensor_unref(x->staged[i]);
    for (int i = 0; i < x->n_masters; i++) {
        ch_var_unref(x->master[i].var);
        ch_tensor_unref(x->master[i].value);
    }
    ch__free(x->master);
    ch__free(x->state);
    ch__free(x->n_built);
    ch__free(x->staged);
    ch__tree_drop(&x->tree);
    return rc;
}

static ch_status new_restored(ch_checkpoint *c, const char *prefix, ch_restored **out)
{
    ch_restored *r = ch__calloc(1, sizeof(*r));
    ch_status    rc = CH_OK;

    if (r == NULL)
        return ch__fail_memory("a restore");
    atomic_init(&r->refs, 1);
    r->checkpoint = c;
    r->prefix = ch__strdup(prefix);
    if (r->prefix == NULL)
        rc = ch__fail_memory("a restore");
    if (rc == CH_OK)
        rc = ch__ckpt_open(prefix, &r->file);
    if (rc == CH_OK) {
        r->value = ch__calloc((size_t)ch__ckpt_count(r->file) + 1, sizeof(*r->value));
        if (r->value == NULL)
            rc = ch__fail_memory("a restore");
    }
    for (int i = 0; rc == CH_OK && i < ch__ckpt_count(r->file); i++)
        r->value[i] = (ch_restored_value){r, i};
    if (rc == CH_OK)
        *out = r;
    else
        ch_restored_unref(r);
    return rc;
}

/* Returns true if an error of the files of a checkpoint means that they are damaged. Other
 * errors would be the same for an older checkpoint. */
static bool is_damage(ch_status rc)
{
    return rc == CH_DATA_LOSS || rc == CH_OUT_OF_RANGE || rc == CH_NOT_FOUND ||
           (ch__failed_at_io() && rc != CH_PERMISSION_DENIED && rc != CH_RESOURCE_EXHAUSTED);
}

ch_status ch__checkpoint_restore(ch_checkpoint *c, const char *path,
                                 const ch_restore_options *opt, ch_restored **out,
                                 bool *is_damaged)
{
    ch_restored *r = NULL;
    char         prefix[PATH_MAX];
    ch_status    rc = ch__checkpoint_check_context("checkpoint restore");

    *is_damaged = false;
    if (rc == CH_OK && opt != NULL && opt->staging_bytes < 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "checkpoint restore: staging_bytes is negative");
    if (rc == CH_OK)
        rc = ch__checkpoint_collect(c, true);
    if (rc != CH_OK)
        return rc;
    rc = ch__ckpt_resolve(path, prefix, sizeof(prefix));
    if (rc == CH_OK)
        rc = new_restored(c, prefix, &r);
    *is_damaged = is_damage(rc);
    if (rc == CH_OK) {
        restoring x = {.c = c, .r = r, .staging_bytes = opt != NULL ? opt->staging_bytes : 0};

        rc = run(&x);
        *is_damaged = is_damage(rc) && !x.is_own_error;
    }
    if (rc != CH_OK) {
        ch_restored_unref(r);
        return rc;
    }
    r->is_complete = true;
    r->expects_partial = opt != NULL && opt->partial;
    if (out != NULL) {
        r->owns_checkpoint = true;
        ch_checkpoint_ref(c);
        *out = r;
    } else {
        ch_restored_unref(c->restored);
        c->restored = r;
    }
    return CH_OK;
}

ch_status ch_checkpoint_restore(ch_checkpoint *c, const char *path,
                                const ch_restore_options *opt, ch_restored **out)
{
    bool      is_damaged;
    ch_status rc = ch__check_not_null("checkpoint restore", "the checkpoint", c, "path", path);

    return rc == CH_OK ? ch__checkpoint_restore(c, path, opt, out, &is_damaged) : rc;
}
