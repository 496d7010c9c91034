/* test/strategy/test_random.c -- random steps: planned, compared with a run node by node.
 *
 * A step of random calls on inputs and variables is run twice from the same state: as planned
 * (fused, folded, in place, with reused memory), and watched, so that every value has its own
 * memory. The bits must be equal.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "graph/memory.h"
#include "help.h"

enum { VARS = 3, SIZE = 4, CALLS = 24, POOL = CALLS + VARS + 3 };

static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(uint64_t *state, int n)
{
    return (int)(next_bits(state) % (uint64_t)n);
}

typedef struct chance {
    uint64_t seed;
    ch_var  *var[VARS];
} chance;

/* Records a random call on a and b. Returns a node of shape (SIZE, SIZE). */
static ch_node *any_call(ch_step *s, uint64_t *r, ch_node *a, ch_node *b)
{
    ch_node *part[2];

    switch (below(r, 14)) {
    case 0:
        return ch_add(a, b);
    case 1:
        return ch_mul(a, b);
    case 2:
        return ch_sub(a, ch_slice(b, 1, (int64_t[]){below(r, SIZE)}, (int64_t[]){1}));
    case 3:
        return ch_tanh(ch_matmul(a, below(r, 2), b, below(r, 2)));
    case 4:
        return ch_transpose(a, 2, (int[]){1, 0});
    case 5:
        return ch_reshape(ch_reshape(a, ch_shape_of(2, -1)), ch_shape_of(SIZE, SIZE));
    case 6:
        return ch_add(a, ch_sum(b, 1, (int[]){below(r, 2)}, true));
    case 7:
        ch_split(a, below(r, 2), 2, NULL, part);
        return ch_reshape(ch_concat(2, (ch_node *[]){part[1], part[0]}, 0),
                          ch_shape_of(SIZE, SIZE));
    case 8:
        return ch_softmax(a, below(r, 2));
    case 9:
        return ch_reverse(a, 1, (int[]){below(r, 2)});
    case 10:
        return ch_select(ch_greater(a, b), b, ch_number(s, 0.5));
    case 11:
        return ch_gradient(ch_mul(a, ch_sin(b)), b);
    case 12:
        return ch_identity(a);
    default:
        return ch_clip(ch_mul(a, ch_number(s, 1.5)), -2, 2);
    }
}

static void record(ch_step *s, void *arg)
{
    chance  *c = arg;
    uint64_t r = c->seed;
    ch_node *pool[POOL];
    int      n = 0;

    pool[n++] = ch_step_in(s, 0);
    for (int i = 0; i < VARS; i++)
        pool[n++] = ch_var_read(s, c->var[i]);
    for (int i = 0; i < CALLS; i++) {
        ch_node *x = any_call(s, &r, pool[below(&r, n)], pool[below(&r, n)]);

        pool[n++] = x;
        if (below(&r, 6) == 0)
            ch_var_assign(s, c->var[below(&r, VARS)], x);
        if (below(&r, 10) == 0)
            ch_check_numerics(x, "random");
    }
    for (int i = 0; i < 3; i++)
        ch_step_out(s, NULL, pool[below(&r, n)]);
    if (below(&r, 2) == 0)
        ch_step_out(s, NULL, ch_var_read(s, c->var[0]));
}

static void nothing(const char *node, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)node, (void)replica, (void)n, (void)out, (void)arg;
}

/* Runs three steps from the initial state. Appends all results and variables to `bits`. */
static size_t run_steps(chance *c, bool watched, float *bits)
{
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(SIZE, SIZE), 99)});
    ch_function *f = t_function(record, c);
    size_t       n = 0;

    ch_function_static_rows(f); /* the calls mix rows and columns */
    if (watched)
        ch_function_watch(f, nothing, NULL);
    for (int i = 0; i < VARS; i++)
        c->var[i] = t_var(NULL, "v", t_noise(ch_shape_of(SIZE, SIZE), (unsigned)i));
    for (int step = 0; step < 3; step++) {
        ch_tuple *out = NULL;

        t_ok(ch_strategy_run(NULL, f, in, &out));
        for (int i = 0; i < ch_tuple_count(out); i++, n += SIZE * SIZE)
            memcpy(bits + n, t_floats(out, i, 0), SIZE * SIZE * sizeof(float));
        ch_tuple_unref(out);
    }
    for (int i = 0; i < VARS; i++)
        for (int k = 0; k < SIZE * SIZE; k++)
            bits[n++] = t_copy_of(c->var[i], 0, k);
    ch_function_unref(f);
    for (int i = 0; i < VARS; i++)
        ch_var_unref(c->var[i]);
    ch_tuple_unref(in);
    return n;
}

static uint64_t n_seeds = 1000; /* or the first argument of the test; 100000 take a minute */

static void a_planned_step_gives_the_bits_of_one_run_node_by_node(void **state)
{
    static float planned[16 * SIZE * SIZE], plain[16 * SIZE * SIZE];

    for (uint64_t seed = 1; seed <= n_seeds; seed++) {
        chance c = {.seed = seed};
        size_t n = run_steps(&c, false, planned);

        assert_int_equal(run_steps(&c, true, plain), n);
        if (memcmp(planned, plain, n * sizeof(float)) != 0)
            fail_msg("seed %llu: the planner changed a result", (unsigned long long)seed);
    }
    (void)state;
}

/* ---- placement of buffers ---- */

static bool overlap(const ch_memory_span *a, const ch_memory_span *b)
{
    return a->from <= b->to && b->from <= a->to && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static void buffers_that_live_at_one_time_never_overlap(void **state)
{
    uint64_t r = 7;
    double   worst = 1;

    for (int round = 0; round < 200; round++) {
        ch_buffers b = {0};
        size_t     arena = 0, live = 0;
        int        n = 1 + below(&r, 60);

        for (int i = 0; i < n; i++) {
            int from = below(&r, 50);

            assert_int_equal(
                ch__buffers_add(&b, (size_t)below(&r, 5000), from, from + below(&r, 20)), i);
        }
        t_ok(ch__buffers_assign(&b, &arena, &live));
        assert_true(arena >= live);
        for (int i = 0; i < n; i++) {
            assert_true(b.at[i].offset % 64 == 0 && b.at[i].offset + b.at[i].bytes <= arena);
            for (int k = 0; k < i; k++)
                assert_false(overlap(&b.at[i], &b.at[k]));
        }
        if (live > 0 && (double)arena / (double)live > worst)
            worst = (double)arena / (double)live;
        ch__buffers_drop(&b);
    }
    assert_true(worst < 1.3); /* random lifetimes are harder than those of models */
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_planned_step_gives_the_bits_of_one_run_node_by_node),
        cmocka_unit_test(buffers_that_live_at_one_time_never_overlap),
    };

    if (argc > 1)
        n_seeds = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
