/* test/save/test_memory.c -- the memory that a restore needs, and that a save allocates when
 * others came before it.
 *
 * In steady state a save allocates the memory of its tree, plan and index, which depends on the
 * number of tensors and not on their sizes. Staging memory, buffers and windows are kept from
 * earlier saves. The first two saves are not measured.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "help.h"

enum {
    TENSORS = 50,
    SMALL = 16,        /* elements of a variable */
    LARGE = 128 << 10, /* the same: 512 KiB */
    PER_TENSOR = 2048, /* bytes of tree, plan and index */
    FIXED = 16 << 10,  /* bytes that do not depend on the number of tensors */
    TOLERANCE = 256,   /* numbers in the index have different lengths */
    PINGS = 32 << 10   /* the same with servers, which exchange messages all the time */
};

/* What a save has allocated. */
typedef struct cost {
    int64_t allocations, bytes; /* bytes: the peak */
} cost;

typedef struct vars {
    ch_local_cluster *cluster;
    ch_strategy      *st;
    ch_var           *var[TENSORS];
    ch_checkpoint    *c;
} vars;

static void vars_begin(vars *x, int kind, int n, int64_t elements)
{
    *x = (vars){.cluster = NULL};
    x->st = t_strategy_of(kind, &x->cluster);
    t_ok(ch_checkpoint_new(&x->c));
    for (int i = 0; i < n; i++) {
        char name[16];

        snprintf(name, sizeof(name), "v%02d", i);
        x->var[i] = t_var(x->st, name, t_f32(ch_shape_of(elements), NULL));
        t_ok(ch_checkpoint_add_var(x->c, name, x->var[i]));
    }
}

static void vars_end(vars *x)
{
    ch_checkpoint_unref(x->c);
    for (int i = 0; i < TENSORS; i++)
        ch_var_unref(x->var[i]);
    ch_strategy_unref(x->st);
    ch_local_cluster_unref(x->cluster);
}

static cost cost_of_save(ch_checkpoint *c)
{
    cost before, after;

    ch__mem_watch(true);
    before.allocations = ch__mem_allocs();
    t_ok(ch_checkpoint_write(
        c, t_path("m"), &(ch_write_options){.wait = true, .sync = CH_OFF, .replace = true}));
    after = (cost){ch__mem_allocs() - before.allocations, ch__mem_peak()};
    ch__mem_watch(false);
    return after;
}

static bool is_near(int64_t a, int64_t b)
{
    return a - b <= TOLERANCE && b - a <= TOLERANCE;
}

/* Returns the cost of the fourth save. That of the third must be the same. */
static cost cost_in_steady_state(ch_checkpoint *c)
{
    cost third, fourth;

    (void)cost_of_save(c);
    (void)cost_of_save(c);
    third = cost_of_save(c);
    fourth = cost_of_save(c);
    assert_int_equal(third.allocations, fourth.allocations);
    assert_true(is_near(third.bytes, fourth.bytes));
    return fourth;
}

static cost cost_of_vars(int kind, int n, int64_t elements)
{
    vars x;
    cost k;

    vars_begin(&x, kind, n, elements);
    k = cost_in_steady_state(x.c);
    vars_end(&x);
    return k;
}

static void save_allocates_the_memory_of_its_index(void **state)
{
    static const int kinds[] = {DEFAULT, MIRRORED_2, CENTRAL};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        cost few = cost_of_vars(kinds[i], 1, SMALL);
        cost small = cost_of_vars(kinds[i], TENSORS, SMALL);
        cost large = cost_of_vars(kinds[i], TENSORS, LARGE);

        assert_true(few.bytes <= FIXED + PER_TENSOR);
        assert_true(small.bytes <= few.bytes + TENSORS * PER_TENSOR);
        assert_true(is_near(large.bytes, small.bytes));
        assert_int_equal(large.allocations, small.allocations);
    }
    (void)state;
}

/* With servers the memory of pieces that are on the way is kept too. */
static void save_of_servers_allocates_the_memory_of_its_index(void **state)
{
    static const int kinds[] = {SERVERS, SHARDED}; /* in 1 and in 3 shards */

    for (int i = 0; i < 2; i++) {
        int64_t bytes[2];

        for (int is_large = 0; is_large < 2; is_large++) {
            vars x;

            vars_begin(&x, kinds[i], TENSORS, is_large ? LARGE : SMALL);
            (void)cost_of_save(x.c);
            (void)cost_of_save(x.c);
            bytes[is_large] = INT64_MAX;
            for (int k = 0; k < 3; k++) { /* on a busy machine many pings wait */
                int64_t b = cost_of_save(x.c).bytes;

                bytes[is_large] = b < bytes[is_large] ? b : bytes[is_large];
            }
            vars_end(&x);
        }
        assert_true(bytes[0] <= FIXED + (1 + 2 * i) * TENSORS * PER_TENSOR + PINGS);
        assert_true(bytes[1] <= bytes[0] + PINGS);
    }
    (void)state;
}

/* The measurement notices a copy: the aggregate of several copies is read into a tensor. */
static void save_that_copies_a_variable_is_noticed(void **state)
{
    ch_strategy   *st = t_mirrored(2);
    ch_checkpoint *c = NULL;
    ch_var        *v = NULL;

    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "v",
                                   .shape = ch_shape_of(LARGE),
                                   .sync = CH_SYNC_ON_READ,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &v));
    t_ok(ch_checkpoint_new(&c));
    t_ok(ch_checkpoint_add_var(c, "v", v));
    assert_true(cost_in_steady_state(c).bytes >= (int64_t)(LARGE * sizeof(float)));
    ch_checkpoint_unref(c);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* A restore holds the state, or as much as its options allow. Either way the values are right,
 * and the checksums are verified before the first value changes. */
static void restore_holds_no_more_than_its_options_allow(void **state)
{
    enum { N = 20, LIMIT = 5 * LARGE * 4 };
    ch_tensor   *small = t_f32(ch_shape_of(LARGE), NULL);
    ch_restored *r = NULL;
    vars         x;

    vars_begin(&x, MIRRORED_2, N, LARGE);
    for (int i = 0; i < N; i++) {
        ((float *)ch_tensor_data_mut(small))[7] = (float)i;
        t_ok(ch_var_set(x.var[i], small));
    }
    (void)cost_of_save(x.c);
    for (int64_t limit = 0; limit <= LIMIT; limit += LIMIT) {
        ch_checkpoint *c = NULL;
        char           name[16];

        t_ok(ch_checkpoint_new(&c));
        for (int i = 0; i < N; i++) {
            snprintf(name, sizeof(name), "v%02d", i);
            t_ok(ch_checkpoint_add_var(c, name, x.var[i]));
            t_ok(ch_var_set(x.var[i], small));
        }
        ch__mem_watch(true);
        t_ok(ch_checkpoint_restore(c, t_path("m"),
                                   &(ch_restore_options){.staging_bytes = limit}, &r));
        if (limit == 0)
            assert_true(ch__mem_peak() >= N * LARGE * 4);
        else
            assert_true(ch__mem_peak() <= LIMIT + (4 << 20)); /* buffers of threads */
        ch__mem_watch(false);
        for (int i = 0; i < N; i++)
            assert_true(t_copy_of(x.var[i], 0, 7) == (float)i &&
                        t_copy_of(x.var[i], 1, 7) == (float)i);
        ch_restored_unref(r);
        ch_checkpoint_unref(c);
    }
    t_refused(ch_checkpoint_restore(x.c, t_path("m"),
                                    &(ch_restore_options){.staging_bytes = -1}, NULL),
              CH_INVALID_ARGUMENT, "staging_bytes", "negative");
    ch_tensor_unref(small);
    vars_end(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(save_allocates_the_memory_of_its_index),
        cmocka_unit_test(save_of_servers_allocates_the_memory_of_its_index),
        cmocka_unit_test(save_that_copies_a_variable_is_noticed),
        cmocka_unit_test(restore_holds_no_more_than_its_options_allow),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
