/* test/strategy/test_parts.c -- the parts of inputs that cores read, and of results that they
 * write: contiguous parts are used in place, and others are copied.
 *
 * A plan has a line with the name of the op for each copy, and none for a part that is used in
 * place. The bytes of the parts are counted in both cases.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cores.h"
#include "graph/function.h"

enum { MOST = 512 };

/* A step of a float input. The expected result is computed by the same step on one device. */
typedef struct parts_case {
    const char *name;
    int         n_cores;
    int         mesh[3]; /* mesh[0] 0: one axis */
    ch_shape    shape;
    void (*record)(ch_step *s, ch_node *x);
    int     takes, puts; /* copies in the plan of core 0 */
    int64_t host;        /* elements that all cores read from inputs and write to results */
} parts_case;

static ch_node *line(ch_node *x)
{
    return ch_add(ch_mul(x, ch_number(ch_node_step(x), 2)), ch_number(ch_node_step(x), 1));
}

static void by_rows(ch_step *s, ch_node *x)
{
    ch_step_out(s, "y", line(ch_mesh_split(x, 2, (int[]){0, CH_OFF})));
}

static void by_columns(ch_step *s, ch_node *x)
{
    ch_step_out(s, "y", line(ch_mesh_split(x, 2, (int[]){CH_OFF, 0})));
}

/* Cores 0 and 1 have the same rows, and cores 2 and 3. */
static void in_two_copies(ch_step *s, ch_node *x)
{
    ch_step_out(s, "y", line(ch_mesh_split(x, 2, (int[]){0, CH_OFF})));
}

static void all_rows_and_some(ch_step *s, ch_node *x)
{
    ch_node *half = ch_mesh_split(x, 2, (int[]){0, CH_OFF});
    ch_node *quarter = ch_mesh_split(x, 2, (int[]){CH_MESH_ALL, CH_OFF});

    ch_step_out(s, "half", ch_square(half));
    ch_step_out(s, "quarter", line(quarter));
}

static void the_same_result_twice(ch_step *s, ch_node *x)
{
    ch_node *y = line(ch_mesh_split(x, 2, (int[]){0, CH_OFF}));

    ch_step_out(s, "y", y);
    ch_step_out(s, "again", y);
}

/* The other cores read the result that a core has computed in place. */
static void result_that_is_used(ch_step *s, ch_node *x)
{
    ch_node *y = line(ch_mesh_split(x, 2, (int[]){0, CH_OFF}));

    ch_step_out(s, "y", y);
    ch_step_out(s, "z",
                ch_mesh_split(ch_add(y, ch_reverse(y, 1, (int[]){0})), 2, (int[]){0, CH_OFF}));
}

static void input_as_result(ch_step *s, ch_node *x)
{
    ch_step_out(s, "x", ch_mesh_split(x, 2, (int[]){0, CH_OFF}));
}

static void part_of_constant(ch_step *s, ch_node *x)
{
    ch_tensor *t = t_noise(ch_shape_of(8, 6), 9);
    ch_node   *c = ch_constant(s, t);

    ch_tensor_unref(t);
    x = ch_sum_all(ch_floor(ch_mesh_split(x, 2, (int[]){0, CH_OFF})));
    ch_step_out(s, "y", ch_mul(ch_mesh_split(c, 2, (int[]){0, CH_OFF}), x));
}

/* The middle axis: a part is contiguous if there is one outer position. */
static void by_middle(ch_step *s, ch_node *x)
{
    ch_step_out(s, "y", line(ch_mesh_split(x, 3, (int[]){CH_OFF, 0, CH_OFF})));
}

static void reshaped(ch_step *s, ch_node *x)
{
    x = ch_reshape(ch_mesh_split(x, 2, (int[]){0, CH_OFF}), ch_shape_of(-1, 2, 3));
    ch_step_out(s, "y", ch_reshape(line(x), ch_shape_of(-1, 6)));
}

static const parts_case cases[] = {
    {"rows", 4, {0}, {2, {8, 6}}, by_rows, 0, 0, 48 + 48},
    {"rows that do not divide", 4, {0}, {2, {7, 6}}, by_rows, 0, 0, 42 + 42},
    {"cores without rows", 4, {0}, {2, {3, 6}}, by_rows, 0, 0, 18 + 18},
    {"columns", 4, {0}, {2, {8, 6}}, by_columns, 1, 1, 48 + 48},
    {"columns of one row", 4, {0}, {2, {1, 6}}, by_columns, 0, 0, 6 + 6},
    {"two copies", 4, {2, 2}, {2, {8, 6}}, in_two_copies, 0, 1, 2 * 48 + 48},
    {"two parts of one input", 4, {2, 2}, {2, {8, 6}}, all_rows_and_some, 0, 1, 4 * 48 + 48},
    {"a result twice", 2, {0}, {2, {8, 6}}, the_same_result_twice, 0, 1, 3 * 48},
    {"a result that is used", 2, {0}, {2, {8, 6}}, result_that_is_used, 0, 0, 3 * 48},
    {"an input as result", 2, {0}, {2, {8, 6}}, input_as_result, 0, 1, 2 * 48},
    {"a constant", 2, {0}, {2, {8, 6}}, part_of_constant, 0, 0, 3 * 48},
    {"middle of 2", 2, {0}, {3, {2, 4, 6}}, by_middle, 1, 1, 2 * 48},
    {"middle of 1", 2, {0}, {3, {1, 4, 6}}, by_middle, 0, 0, 2 * 24},
    {"reshaped", 2, {0}, {2, {8, 6}}, reshaped, 0, 0, 2 * 48},
};

static void record(ch_step *s, void *arg)
{
    ((const parts_case *)arg)->record(s, ch_step_in(s, 0));
}

static int count(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)) != NULL; text += strlen(word))
        n++;
    return n;
}

static void see_nothing(const char *name, int replica, int n, ch_tensor *const *out, void *arg)
{
    (void)name, (void)replica, (void)n, (void)out, (void)arg;
}

/* Runs the step twice. Takes over the strategy. Returns the results of the second run. */
static ch_tuple *run_case(const parts_case *c, ch_strategy *st, bool is_watched,
                          ch_traffic_counts *traffic, char *plan, size_t size)
{
    ch_function *f = NULL;
    ch_tensor   *x = t_noise(c->shape, 5);
    ch_tuple    *in = NULL, *out = NULL;

    t_ok(ch_function_new(c->name, record, (void *)(uintptr_t)c, &f));
    if (is_watched)
        ch_function_watch(f, see_nothing, NULL);
    t_ok(ch_tuple_of(1, &x, &in));
    t_ok(ch_strategy_run(st, f, in, NULL));
    t_ok(ch_strategy_run(st, f, in, &out));
    ch__function_traffic(f, traffic);
    (void)ch_function_print_plan(f, plan, size);
    ch_tuple_unref(in);
    ch_tensor_unref(x);
    ch_function_unref(f);
    ch_strategy_unref(st);
    return out;
}

static void check_equal(const parts_case *c, const ch_tuple *got, const ch_tuple *want)
{
    for (int i = 0; i < ch_tuple_count(want); i++) {
        const ch_tensor *a = ch_value_at(ch_tuple_at(got, i), 0);
        const ch_tensor *b = ch_value_at(ch_tuple_at(want, i), 0);

        assert_int_equal(ch_tensor_count(a), ch_tensor_count(b));
        if (memcmp(ch_tensor_data(a), ch_tensor_data(b),
                   sizeof(float) * (size_t)ch_tensor_count(b)) != 0)
            fail_msg("%s: result %d differs", c->name, i);
    }
}

static void parts_of_inputs_and_results_are_used_in_place_when_contiguous(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const parts_case *c = &cases[i];
        ch_strategy      *one = NULL;
        ch_traffic_counts traffic, watched;
        char              plan[8192], other[8192];
        ch_tuple         *want, *got;

        t_ok(ch_strategy_one_device("GPU:0", &one));
        want = run_case(c, one, false, &traffic, plan, sizeof(plan));
        got = run_case(c, t_cores_strategy(1, c->n_cores, c->mesh), false, &traffic, plan,
                       sizeof(plan));
        check_equal(c, got, want);
        ch_tuple_unref(got);
        if (count(plan, "take_part") != c->takes || count(plan, "put_part") != c->puts ||
            traffic.bytes[CH_TRAFFIC_HOST] != c->host * (int64_t)sizeof(float))
            fail_msg("%s: %d and %d copies, %lld bytes, want %d and %d, %lld\n%s", c->name,
                     count(plan, "take_part"), count(plan, "put_part"),
                     (long long)traffic.bytes[CH_TRAFFIC_HOST], c->takes, c->puts,
                     (long long)c->host * (long long)sizeof(float), plan);
        got = run_case(c, t_cores_strategy(1, c->n_cores, c->mesh), true, &watched, other,
                       sizeof(other));
        check_equal(c, got, want);
        ch_tuple_unref(got);
        ch_tuple_unref(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_inputs_and_results_are_used_in_place_when_contiguous),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
