/* test/strategy/test_waiting.c -- variables that get their value from a source, and the registry
 * of values that wait for variables.
 *
 * The sources are tensors in memory. ch_init_tensor and ch__init_part are wrapped by the linker
 * and count the initial values that are computed, on servers too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>

#include "base/mem.h"
#include "kernel/init.h"
#include "source.h"
#include "strategy/waiting.h"

/* ---- counting initial values ---- */

static atomic_int n_computed;

ch_status __real_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out);
ch_status __wrap_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out);
void      __real_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                               const int64_t *begin, ch_tensor *part);
void      __wrap_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                               const int64_t *begin, ch_tensor *part);

ch_status __wrap_ch_init_tensor(const ch_init *init, const char *name, ch_dtype dtype,
                                ch_shape shape, ch_tensor **out)
{
    n_computed++;
    return __real_ch_init_tensor(init, name, dtype, shape, out);
}

/* Zeros are not computed: new memory is zero. */
void __wrap_ch__init_part(const ch_init *init, const char *name, ch_shape whole,
                          const int64_t *begin, ch_tensor *part)
{
    n_computed += init->kind != CH_INIT_ZEROS;
    __real_ch__init_part(init, name, whole, begin, part);
}

/* ---- values from sources ---- */

static const struct {
    ch_dtype dtype;
    ch_shape shape;
} kinds[] = {{CH_F32, {2, {7, 5}}},    {CH_F32, {0}},
             {CH_F64, {1, {9}}},       {CH_BF16, {2, {4, 6}}},
             {CH_F16, {3, {3, 4, 5}}}, {CH_I64, {0}},
             {CH_I32, {2, {3, 3}}},    {CH_BOOL, {1, {6}}},
             {CH_F32, {2, {0, 4}}},    {CH_U8, {2, {5, 8}}}};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static ch_var *new_from(ch_strategy *st, const ch_var_spec *spec, t_source *s)
{
    ch_value_source from = t_source_of(s);
    ch_var         *v = NULL;

    t_ok(ch__var_new_from(st, spec, NULL, &from, &v));
    return v;
}

static void variable_has_the_bits_of_its_source_under_every_strategy(void **state)
{
    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++) {
        ch_strategy *st = t_strategy(i);

        for (int k = 0; k < N_KINDS; k++) {
            if (i == T_COLUMNS && kinds[k].shape.rank == 1)
                continue; /* it has no columns */
            t_source s = {.value = t_bits(kinds[k].dtype, kinds[k].shape, 3 + k)};
            ch_var  *v = new_from(
                 st,
                 &(ch_var_spec){.name = "w", .dtype = kinds[k].dtype, .shape = kinds[k].shape},
                 &s);

            t_has_bits(v, s.value, t_strategy_name[i]);
            assert_int_equal(s.n_elements, ch_tensor_count(s.value));
            ch_var_unref(v);
            ch_tensor_unref(s.value);
        }
        ch_strategy_unref(st);
    }
}

static void variable_that_exists_gets_the_bits_of_a_source_under_every_strategy(void **state)
{
    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++) {
        ch_strategy *st = t_strategy(i);

        for (int k = 0; k < N_KINDS; k++) {
            if (i == T_COLUMNS && kinds[k].shape.rank == 1)
                continue; /* it has no columns */
            t_source        s = {.value = t_bits(kinds[k].dtype, kinds[k].shape, 5 + k)};
            ch_value_source from = t_source_of(&s);
            ch_var         *v = t_var(st, "w", t_bits(kinds[k].dtype, kinds[k].shape, 99));

            s.in_shards = v;
            t_ok(ch__var_write_from(v, &from));
            t_has_bits(v, s.value, t_strategy_name[i]);
            ch_var_unref(v);
            ch_tensor_unref(s.value);
        }
        ch_strategy_unref(st);
    }
}

static void variable_from_a_source_computes_no_initial_value(void **state)
{
    const ch_init inits[] = {ch_init_normal(0, 1), ch_init_orthogonal(1),
                             ch_init_glorot_uniform(), ch_init_constant(2)};

    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++) {
        ch_strategy *st = t_strategy(i);

        for (int k = 0; k < 4; k++) {
            t_source    s = {.value = t_bits(CH_F32, ch_shape_of(6, 6), 1)};
            ch_var_spec spec = {.name = "w", .shape = s.value->shape, .init = inits[k]};
            ch_var     *v;

            n_computed = 0;
            v = new_from(st, &spec, &s);
            assert_int_equal(n_computed, 0);
            ch_var_unref(v);
            v = NULL;
            t_ok(ch_var_new(st, &spec, &v)); /* the counter works */
            assert_true(n_computed > 0);
            ch_var_unref(v);
            ch_tensor_unref(s.value);
        }
        ch_strategy_unref(st);
    }
}

/* The value is read straight into the first copy, so creation needs no further memory. */
static void variable_from_a_source_needs_memory_for_its_copies_only(void **state)
{
    enum { BYTES = 16 << 20, MORE = 3 << 20 }; /* MORE: blocks begin and end at huge pages */

    (void)state;
    for (int i = T_DEFAULT; i <= T_CENTRAL; i++) {
        ch_strategy *st = t_strategy(i);
        t_source     s = {.value = t_bits(CH_U8, ch_shape_of(BYTES), 1)};
        ch_var      *v;
        int          n_copies;

        ch__mem_watch(true);
        v = new_from(st, &(ch_var_spec){.dtype = CH_U8, .shape = s.value->shape}, &s);
        n_copies = v->n_copies;
        /* The test's own source copies nothing: a region of a vector is contiguous. */
        if (ch__mem_peak() > (int64_t)n_copies * (BYTES + MORE))
            fail_msg("%s: %lld bytes for %d copies of %d", t_strategy_name[i],
                     (long long)ch__mem_peak(), n_copies, BYTES);
        ch__mem_watch(false);
        ch_var_unref(v);
        ch_tensor_unref(s.value);
        ch_strategy_unref(st);
    }
}

/* A large value is read in pieces of at most 64 MiB: by all threads of the devices, or on the
 * way to servers, so that this process never holds the whole value. */
static void variable_is_read_from_its_source_in_pieces(void **state)
{
    static const int which[] = {T_DEFAULT, T_MIRRORED, T_SERVERS, T_SHARDS};

    (void)state;
    for (size_t i = 0; i < sizeof(which) / sizeof(which[0]); i++) {
        ch_strategy    *st = t_strategy(which[i]);
        t_source        s = {.value = t_bits(CH_U8, ch_shape_of(3, 23 << 20), 1)};
        ch_value_source from = t_source_of(&s);
        ch_var *v = new_from(st, &(ch_var_spec){.dtype = CH_U8, .shape = s.value->shape}, &s);

        t_has_bits(v, s.value, t_strategy_name[which[i]]);
        assert_int_equal(s.n_reads, which[i] == T_SHARDS ? 3 : 2);
        assert_true(s.largest <= 64 << 20);
        s.in_shards = v;
        s.fail_at = s.n_reads + 2;
        t_refused(ch__var_write_from(v, &from), CH_DATA_LOSS, "variable Variable",
                  "the source cannot be read");
        ch_var_unref(v);
        ch_tensor_unref(s.value);
        ch_strategy_unref(st);
    }
}

/* Returns the element of a copy as a number. */
static double copy_at(ch_var *v, int copy, int i)
{
    return ch__load(v->dtype, v->copy[copy]->data + (size_t)i * ch_dtype_bytes(v->dtype));
}

/* The copies of a per-replica variable get values whose aggregate is that of the source. An
 * integer keeps its remainder. */
static void per_replica_variable_has_the_source_as_its_aggregate(void **state)
{
    const struct {
        ch_aggregation how;
        ch_dtype       dtype;
        double         value, copy[2];
    } rows[] = {{CH_AGGREGATE_SUM, CH_F32, 7, {3.5, 3.5}},
                {CH_AGGREGATE_SUM, CH_I64, 7, {4, 3}},
                {CH_AGGREGATE_SUM, CH_I32, -3, {-1, -2}},
                {CH_AGGREGATE_MEAN, CH_F32, 3.5, {3.5, 3.5}},
                {CH_AGGREGATE_FIRST, CH_I64, 9, {9, 9}}};
    ch_strategy *st = t_mirrored(2);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        t_source        s = {.value = NULL};
        ch_value_source from;
        ch_var         *v;
        ch_var_spec     spec = {
                .dtype = rows[i].dtype, .sync = CH_SYNC_ON_READ, .aggregation = rows[i].how};

        t_ok(ch_tensor_scalar(rows[i].dtype, rows[i].value, &s.value));
        from = t_source_of(&s);
        v = new_from(st, &spec, &s);
        for (int again = 0; again < 2; again++) {
            t_has_bits(v, s.value, "the aggregate");
            for (int k = 0; k < 2; k++)
                assert_true(copy_at(v, k, 0) == rows[i].copy[k]);
            memset(v->copy[0]->data, 1, ch_tensor_bytes(v->copy[0]));
            t_ok(ch__var_write_from(v, &from));
        }
        ch_var_unref(v);
        ch_tensor_unref(s.value);
    }
    ch_strategy_unref(st);
}

static void source_of_another_shape_or_dtype_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++) {
        ch_strategy    *st = t_strategy(i);
        t_source        s = {.value = t_bits(CH_F32, ch_shape_of(6, 4), 1)};
        ch_value_source from = t_source_of(&s);
        ch_tensor      *was = t_bits(CH_BF16, ch_shape_of(6, 4), 2);
        ch_var         *v = NULL;
        int64_t         live = ch__mem_live();

        t_refused(ch__var_new_from(
                      st, &(ch_var_spec){.name = "net/kernel", .shape = ch_shape_of(4, 6)},
                      NULL, &from, &v),
                  CH_INVALID_ARGUMENT,
                  "variable net/kernel: tensor \"saved\" of run/ckpt-7 is f32(6, 4)",
                  "want f32(4, 6)");
        assert_null(v);
        if (i < T_SERVERS) /* tasks allocate at any time */
            assert_int_equal(ch__mem_live(), live);
        t_ok(ch_var_new(st, &(ch_var_spec){.name = "w", .initial = was}, &v));
        t_refused(ch__var_write_from(v, &from), CH_INVALID_ARGUMENT, "variable w", "bf16");
        t_has_bits(v, was, "the value from before");
        assert_int_equal(s.n_reads, 0);
        ch_var_unref(v);
        ch_tensor_unref(was);
        ch_tensor_unref(s.value);
        ch_strategy_unref(st);
    }
}

/* With a source the initial value is not computed, but checked: a program that is wrong without
 * a checkpoint is wrong with one. */
static void variable_from_a_source_checks_its_initial_value(void **state)
{
    t_source        s = {.value = t_bits(CH_F32, ch_shape_of(3), 1)};
    ch_value_source from = t_source_of(&s);
    ch_var         *v = NULL;

    (void)state;
    t_refused(ch__var_new_from(
                  NULL, &(ch_var_spec){.shape = ch_shape_of(3), .init = ch_init_orthogonal(1)},
                  NULL, &from, &v),
              CH_INVALID_ARGUMENT, "orthogonal needs at least 2 axes", "variable");
    ch_tensor_unref(s.value);
}

/* A creator hook sees the initial value of the program. The source replaces that value. */
static ch_status see_spec(ch_var_spec *spec, void *arg)
{
    *(ch_init *)arg = spec->init;
    spec->trainable = CH_OFF;
    return CH_OK;
}

static void creator_hook_sees_the_same_spec_when_a_source_has_the_value(void **state)
{
    t_source s = {.value = t_bits(CH_F32, ch_shape_of(3), 1)};
    ch_init  seen = ch_init_zeros();
    ch_var  *v;

    (void)state;
    t_ok(ch_var_creator_enter(see_spec, &seen));
    v = new_from(NULL, &(ch_var_spec){.shape = ch_shape_of(3), .init = ch_init_constant(4)},
                 &s);
    ch_var_creator_leave();
    assert_int_equal(seen.kind, CH_INIT_CONSTANT);
    assert_false(ch_var_is_trainable(v));
    t_has_bits(v, s.value, "the value");
    ch_var_unref(v);
    ch_tensor_unref(s.value);
}

static void variable_from_a_source_leaks_nothing_when_out_of_memory_or_unreadable(void **state)
{
    static const ch_sync sync[] = {CH_SYNC_ON_WRITE, CH_SYNC_ON_READ};

    (void)state;
    for (int i = T_DEFAULT; i <= T_CENTRAL; i++)
        for (int k = 0; k < 2; k++) {
            ch_strategy    *st = t_strategy(i);
            t_source        s = {.value = t_bits(CH_F32, ch_shape_of(6, 4), 1)};
            ch_value_source from = t_source_of(&s);
            ch_var_spec     spec = {
                    .shape = s.value->shape, .sync = sync[k], .aggregation = CH_AGGREGATE_SUM};
            ch_var   *v = NULL;
            int64_t   live = ch__mem_live();
            ch_status rc = CH_RESOURCE_EXHAUSTED;

            s.fail_at = 1;
            assert_int_equal(ch__var_new_from(st, &spec, NULL, &from, &v), CH_DATA_LOSS);
            assert_int_equal(ch__mem_live(), live);
            for (int n = 1; rc != CH_OK; n++) {
                assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
                ch__mem_fail_at(n);
                rc = ch__var_new_from(st, &spec, NULL, &from, &v);
                ch__mem_fail_at(0);
                if (rc != CH_OK)
                    assert_int_equal(ch__mem_live(), live);
            }
            t_has_bits(v, s.value, t_strategy_name[i]);
            ch_var_unref(v);
            ch_tensor_unref(s.value);
            ch_strategy_unref(st);
        }
}

/* ---- leaders and followers ---- */

/* ch__var_write_from sets a 16-bit variable and its master independently, in any order. */
static void leader_and_follower_are_set_exactly_from_sources(void **state)
{
    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++)
        for (int order = 0; order < 2; order++) {
            ch_strategy *st = t_strategy(i);
            t_source     s[2] = {{.value = t_bits(CH_BF16, ch_shape_of(6, 5), 1)},
                                 {.value = t_noise(ch_shape_of(6, 5), 2)}};
            ch_var      *v[2] = {t_var(st, "w", t_bits(CH_BF16, ch_shape_of(6, 5), 3)),
                                 t_var(st, "w/master", t_noise(ch_shape_of(6, 5), 4))};

            ch__var_follow(v[1], v[0]);
            for (int k = 0; k < 2; k++) {
                ch_value_source from = t_source_of(&s[k ^ order]);

                t_ok(ch__var_write_from(v[k ^ order], &from));
            }
            t_has_bits(v[0], s[0].value, "the leader");
            t_has_bits(v[1], s[1].value, "the follower");
            ch_var_unref(v[1]);
            ch_var_unref(v[0]);
            ch_tensor_unref(s[0].value);
            ch_tensor_unref(s[1].value);
            ch_strategy_unref(st);
        }
}

/* If only the leader has a value, the follower is set as by ch_var_set. */
static void followers_are_updated_as_by_set(void **state)
{
    (void)state;
    for (int i = 0; i < T_STRATEGIES; i++) {
        ch_strategy    *st = t_strategy(i);
        ch_tensor      *before = t_noise(ch_shape_of(6, 5), 4), *next = NULL, *want = NULL;
        t_source        s = {.value = NULL};
        ch_value_source from;
        ch_var         *v[2][2];

        for (int k = 0; k < 2; k++) {
            v[k][0] = t_var(st, "w", t_bits(CH_BF16, ch_shape_of(6, 5), 3));
            v[k][1] = t_var(st, "w/master", ch_tensor_ref(before));
            ch__var_follow(v[k][1], v[k][0]);
        }
        t_ok(ch__tensor_cast(before, CH_BF16, &next));
        memset(next->data, 0x3f, 20); /* some elements differ from the rounded master */
        s.value = next;
        from = t_source_of(&s);
        t_ok(ch_var_set(v[0][0], next));
        t_ok(ch__var_write_from(v[1][0], &from));
        t_ok(ch__var_update_followers(v[1][0]));
        t_ok(ch_var_get(v[0][1], &want));
        t_has_bits(v[1][1], want, t_strategy_name[i]);
        assert_memory_equal(want->data + 40, before->data + 40, 80);
        for (int k = 0; k < 2; k++) {
            ch_var_unref(v[k][1]);
            ch_var_unref(v[k][0]);
        }
        ch_tensor_unref(want);
        ch_tensor_unref(next);
        ch_tensor_unref(before);
        ch_strategy_unref(st);
    }
}

/* ---- the registry ---- */

/* A restore with a value for each of some names. */
typedef struct restore {
    const char             *name[4]; /* NULL: no value */
    t_source                source[4];
    const void             *object; /* has the names; NULL: every object */
    atomic_int              n_created, n_freed;
    _Atomic(const ch_var *) created; /* the last */
} restore;

static bool restore_find(void *arg, const void *object, ch_var *of, const char *name,
                         ch_value_source *out)
{
    restore *r = arg;

    (void)of;
    for (int i = 0; i < 4 && (r->object == NULL || r->object == object); i++)
        if (r->name[i] != NULL && strcmp(r->name[i], name) == 0) {
            *out = t_source_of(&r->source[i]);
            return true;
        }
    return false;
}

static void restore_created(void *arg, const void *object, ch_var *of, const char *name,
                            ch_var *v)
{
    restore *r = arg;

    (void)object;
    (void)of;
    (void)name;
    r->created = v;
    r->n_created++;
}

static void restore_free(void *arg)
{
    ((restore *)arg)->n_freed++;
}

static const ch_waiting_ops restore_ops = {restore_find, restore_created, restore_free};

static const int object_a, object_b; /* objects are compared by address only */

static ch_var *create_waiting(const void *object, const char *name)
{
    ch_waiting  p = ch__waiting_find(object, NULL, name);
    ch_var     *v = NULL;
    ch_var_spec spec = {.name = name, .shape = ch_shape_of(5), .init = ch_init_constant(-1)};

    t_ok(ch__waiting_create(&p, NULL, &spec, NULL, &v));
    assert_null(p.restore);
    return v;
}

static void check_created(const void *object, const char *name, const ch_tensor *want)
{
    ch_var    *v = create_waiting(object, name);
    ch_tensor *minus = t_f32(ch_shape_of(5), (float[]){-1, -1, -1, -1, -1});

    t_has_bits(v, want != NULL ? want : minus, name);
    ch_tensor_unref(minus);
    ch_var_unref(v);
}

static void waiting_value_of_the_last_restore_wins(void **state)
{
    ch_tensor          *x[3];
    restore             old = {.name = {"w", "b"}}, new = {.name = {"w"}, .object = &object_a};
    ch_waiting_restore *r[2];

    (void)state;
    for (int i = 0; i < 3; i++)
        x[i] = t_noise(ch_shape_of(5), 1 + i);
    old.source[0].value = x[0];
    old.source[1].value = x[1];
    new.source[0].value = x[2];
    check_created(&object_a, "w", NULL);
    t_ok(ch__waiting_add(&restore_ops, &old, &r[0]));
    check_created(&object_a, "w", x[0]);
    t_ok(ch__waiting_add(&restore_ops, &new, &r[1]));
    check_created(&object_a, "w", x[2]);
    check_created(&object_a, "w", x[2]); /* the variable was freed and is created again */
    check_created(&object_b, "w", x[0]);
    check_created(&object_a, "b", x[1]);
    check_created(&object_a, "none", NULL);
    assert_int_equal(old.n_created, 3);
    assert_int_equal(new.n_created, 2);
    ch__waiting_remove(r[0]); /* not the newest */
    assert_int_equal(old.n_freed, 1);
    check_created(&object_b, "w", NULL);
    check_created(&object_a, "w", x[2]);
    ch__waiting_remove(r[1]);
    assert_int_equal(new.n_freed, 1);
    check_created(&object_a, "w", NULL);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(x[i]);
}

static void waiting_restore_is_freed_after_the_last_variable_that_uses_it(void **state)
{
    ch_tensor          *x = t_noise(ch_shape_of(5), 1);
    restore             one = {.name = {"w"}, .source = {{.value = x}}};
    ch_waiting_restore *r;
    ch_waiting          p;
    ch_var             *v = NULL;

    (void)state;
    t_ok(ch__waiting_add(&restore_ops, &one, &r));
    p = ch__waiting_find(&object_a, NULL, "w");
    ch__waiting_remove(r);
    assert_int_equal(one.n_freed, 0);
    check_created(&object_a, "w", NULL);
    t_ok(ch__waiting_create(&p, NULL, &(ch_var_spec){.name = "w", .shape = ch_shape_of(5)},
                            NULL, &v));
    assert_int_equal(one.n_freed, 1);
    assert_ptr_equal(one.created, v);
    t_has_bits(v, x, "w");
    ch_var_unref(v);
    ch_tensor_unref(x);
}

static void waiting_value_stays_when_its_variable_cannot_be_created(void **state)
{
    ch_tensor          *x = t_noise(ch_shape_of(5), 1);
    restore             one = {.name = {"w"}, .source = {{.value = x}}};
    ch_waiting_restore *r;
    ch_waiting          p;
    ch_var             *v = NULL;
    int64_t             live;

    (void)state;
    ch__mem_fail_at(1);
    assert_int_equal(ch__waiting_add(&restore_ops, &one, &r), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_at(0);
    assert_int_equal(one.n_freed, 0); /* the caller still owns it */
    t_ok(ch__waiting_add(&restore_ops, &one, &r));
    live = ch__mem_live();
    p = ch__waiting_find(&object_a, NULL, "w");
    t_refused(ch__waiting_create(&p, NULL, &(ch_var_spec){.shape = ch_shape_of(6)}, NULL, &v),
              CH_INVALID_ARGUMENT, "is f32(5,), want f32(6,)", "restore a checkpoint of");
    assert_int_equal(ch__mem_live(), live);
    assert_int_equal(one.n_created, 0);
    check_created(&object_a, "w", x);
    ch__waiting_remove(r);
    assert_int_equal(one.n_freed, 1);
    ch_tensor_unref(x);
}

/* Threads create variables while others register and remove restores. A variable has the value
 * of a restore, or the initial value. */
enum { CREATED = 200, THREADS = 2 };

/* Threads return NULL after an error, because a test can fail in its own thread only. */
static void *create_many(void *arg)
{
    for (int i = 0; i < CREATED; i++) {
        ch_waiting   p = ch__waiting_find(arg, NULL, "w");
        ch_var      *v = NULL;
        ch_tensor   *t = NULL;
        const float *x;
        bool         is_whole = true;
        ch_var_spec spec = {.name = "w", .shape = ch_shape_of(5), .init = ch_init_constant(-1)};

        if (ch__waiting_create(&p, NULL, &spec, NULL, &v) != CH_OK ||
            ch_var_get(v, &t) != CH_OK)
            return NULL;
        x = ch_tensor_data(t);
        for (int k = 0; k < 5; k++)
            is_whole &= x[k] == x[0] && (x[0] == 3 || x[0] == -1);
        ch_tensor_unref(t);
        ch_var_unref(v);
        if (!is_whole)
            return NULL;
    }
    return arg;
}

static void *register_many(void *arg)
{
    ch_tensor *x = NULL;
    ch_status  rc = ch_init_tensor(&(ch_init){.kind = CH_INIT_CONSTANT, .a = 3}, "", CH_F32,
                                   ch_shape_of(5), &x);

    for (int i = 0; i < CREATED && rc == CH_OK; i++) {
        restore             r = {.name = {"w"}, .source = {{.value = x}}};
        ch_waiting_restore *registered;

        rc = ch__waiting_add(&restore_ops, &r, &registered);
        if (rc != CH_OK)
            break;
        sched_yield();
        ch__waiting_remove(registered);
        while (r.n_freed == 0) /* another thread creates a variable with its value */
            sched_yield();
    }
    ch_tensor_unref(x);
    return rc == CH_OK ? arg : NULL;
}

static void waiting_restores_are_removed_while_other_threads_create_variables(void **state)
{
    pthread_t thread[2 * THREADS];
    int       object = 0;

    (void)state;
    for (int i = 0; i < 2 * THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL,
                                        i < THREADS ? create_many : register_many, &object),
                         0);
    for (int i = 0; i < 2 * THREADS; i++) {
        void *result = NULL;

        assert_int_equal(pthread_join(thread[i], &result), 0);
        assert_ptr_equal(result, &object);
    }
    check_created(&object, "w", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_has_the_bits_of_its_source_under_every_strategy),
        cmocka_unit_test(variable_that_exists_gets_the_bits_of_a_source_under_every_strategy),
        cmocka_unit_test(variable_from_a_source_computes_no_initial_value),
        cmocka_unit_test(variable_from_a_source_needs_memory_for_its_copies_only),
        cmocka_unit_test(variable_is_read_from_its_source_in_pieces),
        cmocka_unit_test(per_replica_variable_has_the_source_as_its_aggregate),
        cmocka_unit_test(source_of_another_shape_or_dtype_is_refused),
        cmocka_unit_test(variable_from_a_source_checks_its_initial_value),
        cmocka_unit_test(creator_hook_sees_the_same_spec_when_a_source_has_the_value),
        cmocka_unit_test(variable_from_a_source_leaks_nothing_when_out_of_memory_or_unreadable),
        cmocka_unit_test(leader_and_follower_are_set_exactly_from_sources),
        cmocka_unit_test(followers_are_updated_as_by_set),
        cmocka_unit_test(waiting_value_of_the_last_restore_wins),
        cmocka_unit_test(waiting_restore_is_freed_after_the_last_variable_that_uses_it),
        cmocka_unit_test(waiting_value_stays_when_its_variable_cannot_be_created),
        cmocka_unit_test(waiting_restores_are_removed_while_other_threads_create_variables),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
