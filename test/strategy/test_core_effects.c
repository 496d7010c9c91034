/* test/strategy/test_core_effects.c -- effects on replicas of several logical devices (cores):
 * host calls, prints and checks; and lookups of words.
 *
 * The steps have a value that is split over the cores, partial sums and partial maxima. Core 0
 * must assemble each of them before an effect, so the program sees whole values, once for each
 * replica and in recording order. x of replica r begins with the number 100 (r + 1), by which
 * the host functions know their replica. All numbers are whole, so results are exact.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>

#include "base/config.h"
#include "cores.h"

enum { ROWS = 5, IN = 6, OUT = 3 };

static const char *const modes[] = {"threads", "turns"};

/* Replicas, and the mesh of the cores of each. */
static const struct {
    int n_replicas, n_cores, mesh[3];
} sizes[] = {{1, 2, {0}}, {1, 8, {0}}, {2, 4, {0}},
             {2, 3, {0}}, {4, 2, {0}}, {1, 8, {2, 4, 0}}};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* A strategy, a variable that counts the runs, and what the program has seen. */
typedef struct scene {
    ch_strategy    *st;
    ch_var         *n_runs;
    pthread_mutex_t lock;
    int             n_first[T_MOST_DEVICES], n_second[T_MOST_DEVICES]; /* calls, by replica */
    int             n_wrong;
    int             fails; /* see_all refuses the values of this replica; -1: none */
} scene;

static scene *new_scene(ch_strategy *st)
{
    scene *x = calloc(1, sizeof(*x));

    assert_non_null(x);
    x->st = st;
    x->fails = -1;
    x->n_runs = t_var(st, "n_runs", t_f32((ch_shape){0}, (float[]){0}));
    assert_int_equal(pthread_mutex_init(&x->lock, NULL), 0);
    return x;
}

static scene *scene_of_size(int i)
{
    return new_scene(t_cores_strategy(sizes[i].n_replicas, sizes[i].n_cores, sizes[i].mesh));
}

static void drop_scene(scene *x)
{
    ch_var_unref(x->n_runs);
    ch_strategy_unref(x->st);
    (void)pthread_mutex_destroy(&x->lock);
    free(x);
}

static float runs_of(const scene *x)
{
    ch_tensor *t = NULL;
    float      n;

    t_ok(ch_var_get(x->n_runs, &t));
    n = *(const float *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return n;
}

/* ---- values ---- */

static float x_at(int replica, int row, int col)
{
    return row + col == 0 ? (float)(100 * (replica + 1)) : (float)((7 * row + 3 * col) % 11);
}

static float w_at(int row, int col)
{
    return (float)((row + 2 * col) % 5);
}

static float product_at(int replica, int row, int col)
{
    float sum = 0;

    for (int k = 0; k < IN; k++)
        sum += x_at(replica, row, k) * w_at(k, col);
    return sum;
}

static float most_at(int replica, int row)
{
    float most = 0;

    for (int k = 0; k < IN; k++)
        most = fmaxf(most, x_at(replica, row, k));
    return most;
}

/* Returns x of each replica, whose number of rows is a symbol, and w. */
static ch_tuple *inputs(int n_replicas)
{
    ch_tensor *x[T_MOST_DEVICES], *w = t_f32(ch_shape_of(1, IN, OUT), NULL);
    ch_value  *v[2] = {NULL, NULL};
    ch_tuple  *in = NULL;

    for (int r = 0; r < n_replicas; r++) {
        x[r] = t_f32(ch_shape_of(ROWS, IN), NULL);
        for (int i = 0; i < ROWS * IN; i++)
            ((float *)ch_tensor_data_mut(x[r]))[i] = x_at(r, i / IN, i % IN);
    }
    for (int i = 0; i < IN * OUT; i++)
        ((float *)ch_tensor_data_mut(w))[i] = w_at(i / OUT, i % OUT);
    t_ok(ch_value_new(n_replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, n_replicas, x, &v[0]));
    t_ok(ch_value_new(CH_PLAIN, 1, &w, &v[1]));
    t_ok(ch_tuple_new(2, v, NULL, &in));
    for (int i = 0; i < 2; i++)
        ch_value_unref(v[i]);
    for (int r = 0; r < n_replicas; r++)
        ch_tensor_unref(x[r]);
    ch_tensor_unref(w);
    return in;
}

static ch_node *by_columns(ch_node *x)
{
    return ch_mesh_split(x, 2, (int[]){CH_OFF, CH_MESH_ALL});
}

/* Sets value[0 .. 2] to x in columns, the product x w as partial sums, and the largest number
 * of each row as partial maxima. */
static void record_values(ch_step *s, ch_node **value)
{
    ch_node *w = ch_sum(ch_step_in(s, 1), 1, (int[]){0}, false);

    w = ch_mesh_split(w, 2, (int[]){CH_MESH_ALL, CH_OFF});
    value[0] = by_columns(ch_step_in(s, 0));
    value[1] = ch_matmul(value[0], false, w, false);
    value[2] = ch_max(value[0], 1, (int[]){1}, false);
}

/* ---- host calls ---- */

static int replica_of(const ch_tensor *t)
{
    return (int)((const float *)ch_tensor_data(t))[0] / 100 - 1;
}

/* Gets the three values. Returns x + 3, and the sums of the rows of x w. */
static ch_status see_all(void *arg, int n_in, ch_tensor *const *in, int n_out,
                         ch_tensor *const *out)
{
    scene       *w = arg;
    const float *x = ch_tensor_data(in[0]), *product = ch_tensor_data(in[1]);
    const float *most = ch_tensor_data(in[2]);
    float       *y = ch_tensor_data_mut(out[0]), *sum = ch_tensor_data_mut(out[1]);
    int          r = replica_of(in[0]), wrong = n_in != 3 || n_out != 2;

    for (int i = 0; i < ROWS; i++) {
        sum[i] = 0;
        wrong += most[i] != most_at(r, i);
        for (int k = 0; k < IN; k++) {
            wrong += x[i * IN + k] != x_at(r, i, k);
            y[i * IN + k] = x[i * IN + k] + 3;
        }
        for (int k = 0; k < OUT; k++) {
            wrong += product[i * OUT + k] != product_at(r, i, k);
            sum[i] += product[i * OUT + k];
        }
    }
    (void)pthread_mutex_lock(&w->lock);
    w->n_wrong += wrong + (w->n_first[r]++ != w->n_second[r]);
    (void)pthread_mutex_unlock(&w->lock);
    return r == w->fails ? CH_DATA_LOSS : CH_OK;
}

/* Gets the first result of see_all, which has been split in between. */
static ch_status see_result(void *arg, int n_in, ch_tensor *const *in, int n_out,
                            ch_tensor *const *out)
{
    scene       *w = arg;
    const float *y = ch_tensor_data(in[0]);
    int          r = replica_of(in[0]), wrong = n_in != 1 || n_out != 0;

    (void)out;
    for (int i = 0; i < ROWS * IN; i++)
        wrong += y[i] != x_at(r, i / IN, i % IN) + 3;
    (void)pthread_mutex_lock(&w->lock);
    w->n_wrong += wrong + (++w->n_second[r] != w->n_first[r]);
    (void)pthread_mutex_unlock(&w->lock);
    return CH_OK;
}

static void record_calls(ch_step *s, void *arg)
{
    scene   *w = arg;
    ch_node *value[3], *y[2];

    record_values(s, value);
    ch_host_call(s,
                 &(ch_host_spec){.name = "see_all",
                                 .fn = see_all,
                                 .arg = w,
                                 .n_out = 2,
                                 .out = {{.dtype = CH_F32, .like = value[0]},
                                         {.dtype = CH_F32, .like = value[2]}}},
                 3, value, y);
    y[0] = by_columns(y[0]);
    ch_host_call(s, &(ch_host_spec){.name = "see_result", .fn = see_result, .arg = w}, 1, y,
                 NULL);
    ch_step_out(s, "y", ch_mul(y[0], ch_number(s, 2)));
    ch_step_out(s, "sum", y[1]);
    ch_var_assign_add(s, w->n_runs, ch_number(s, 1));
}

static void check_results(const ch_tuple *out, int n_replicas)
{
    for (int r = 0; r < n_replicas; r++) {
        const float *y = t_floats(out, 0, r), *sum = t_floats(out, 1, r);

        for (int i = 0; i < ROWS; i++) {
            float want = 0;

            for (int k = 0; k < OUT; k++)
                want += product_at(r, i, k);
            assert_true(sum[i] == want);
            for (int k = 0; k < IN; k++)
                assert_true(y[i * IN + k] == 2 * (x_at(r, i, k) + 3));
        }
    }
}

/* Checks that the step has partial sums and maxima, so that core 0 must assemble them. */
static void check_layouts(ch_function *f)
{
    static char text[1 << 14];

    (void)ch_function_print_layouts(f, text, sizeof(text));
    if (strstr(text, "partial sum of ") == NULL || strstr(text, "partial max of ") == NULL)
        fail_msg("%s", text);
}

/* HST-1, HST-4: a host function runs once for each replica, on whole values; its results come back
 * to the cores. */
static void host_call_gets_whole_values_once_for_each_replica(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (int m = 0; m < 2; m++) {
            scene       *x = scene_of_size(i);
            ch_function *f = t_function(record_calls, x);
            ch_tuple    *in = inputs(sizes[i].n_replicas);

            t_ok(ch__config_set("replicas", modes[m]));
            for (int k = 1; k <= 2; k++) {
                ch_tuple *out = NULL;

                t_ok(ch_strategy_run(x->st, f, in, &out));
                check_results(out, sizes[i].n_replicas);
                ch_tuple_unref(out);
                check_layouts(f);
                for (int r = 0; r < sizes[i].n_replicas; r++) {
                    assert_int_equal(x->n_first[r], k);
                    assert_int_equal(x->n_second[r], k);
                }
                assert_int_equal(x->n_wrong, 0);
            }
            ch_tuple_unref(in);
            ch_function_unref(f);
            drop_scene(x);
        }
}

/* ---- checks ---- */

static void record_checks(ch_step *s, void *arg)
{
    const scene *w = arg;
    ch_node     *value[3], *y;

    record_values(s, value);
    ch_check(ch_less(value[0], ch_number(s, 1000)), "x is small");
    y = ch_check_numerics(value[1], "the product");
    ch_step_out(s, "y", y);
    ch_var_assign_add(s, w->n_runs, ch_number(s, 1));
}

/* Core 0 has only the first columns of x, and the last number is the bad one. */
static void effect_that_fails_names_core_0_and_changes_no_variable(void **state)
{
    static const struct {
        ch_step_fn  step;
        float       bad;
        ch_status   code;
        const char *word;
    } row[] = {
        {record_calls, 0, CH_DATA_LOSS, "see_all returned DATA_LOSS"},
        {record_checks, 2000, CH_INVALID_ARGUMENT, "x is small"},
        {record_checks, -INFINITY, CH_INVALID_ARGUMENT, "the product"},
    };

    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < 3; k++) {
            scene       *x = scene_of_size(i);
            ch_function *f = t_function(row[k].step, x);
            int          last = sizes[i].n_replicas - 1;
            ch_tuple    *in = inputs(sizes[i].n_replicas);
            float       *at = ch_tensor_data_mut(ch_value_at(ch_tuple_at(in, 0), last)), was;
            char         core[40];

            t_ok(ch__config_set("replicas", modes[k % 2]));
            was = at[ROWS * IN - 1];
            if (k == 0)
                x->fails = last;
            else
                at[ROWS * IN - 1] = row[k].bad;
            (void)snprintf(core, sizeof(core), "core 0 (GPU:%d)", last * sizes[i].n_cores);
            t_refused(ch_strategy_run(x->st, f, in, NULL), row[k].code, core, row[k].word);
            assert_non_null(strstr(ch_error_message(), "test_core_effects.c:"));
            assert_true(runs_of(x) == 0);
            at[ROWS * IN - 1] = was;
            x->fails = -1;
            t_ok(ch_strategy_run(x->st, f, in, NULL));
            assert_true(runs_of(x) == 1);
            ch_tuple_unref(in);
            ch_function_unref(f);
            drop_scene(x);
        }
}

/* ---- prints ---- */

/* The lines that replicas have printed. */
static char lines[T_MOST_DEVICES][8192];

static void keep_line(const ch_log_record *r, void *arg)
{
    int    replica = 0;
    size_t used;

    (void)arg;
    if (strcmp(r->code, "print") != 0)
        return;
    (void)sscanf(r->text, "replica %d,", &replica);
    used = strlen(lines[replica]);
    (void)snprintf(lines[replica] + used, sizeof(lines[replica]) - used, "%s\n", r->text);
}

static void print_iteration(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                            ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)y;
    next[0] = ch_print(ch_add(carry[0], x[0]), "carry");
}

/* The scan goes through the rows of x, whose columns are split. */
static void record_prints(ch_step *s, void *arg)
{
    ch_node *value[3], *carry, *last = NULL;

    (void)arg;
    record_values(s, value);
    ch_print(value[0], "x");
    ch_print(value[1], "product");
    carry = ch_sum(value[0], 1, (int[]){0}, false);
    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .n_x = 1}, print_iteration, NULL, &carry, value,
            &last, NULL);
    ch_print(value[2], "most");
    ch_print(ch_sum_all(value[1]), "sum");
    ch_print(ch_rows(value[0]), "rows");
    ch_step_out(s, "last", last);
}

/* Runs the step on a strategy, whose reference it takes over, and keeps the lines in `out`. */
static void print_under(ch_strategy *st, char out[T_MOST_DEVICES][8192])
{
    ch_function *f = t_function(record_prints, NULL);
    ch_tuple    *in = inputs(ch_strategy_replicas(st));

    memset(lines, 0, sizeof(lines));
    t_ok(ch_strategy_run(st, f, in, NULL));
    memcpy(out, lines, sizeof(lines));
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* HST-1: a print is like a host function, also in the body of a loop. */
static void prints_are_those_of_replicas_of_one_device(void **state)
{
    static char got[T_MOST_DEVICES][8192], want[T_MOST_DEVICES][8192];

    (void)state;
    ch_log_set_sink(keep_line, NULL, CH_LOG_PRINT);
    for (int i = 0; i < SIZES; i++)
        for (int m = 0; m < 2; m++) {
            t_ok(ch__config_set("replicas", modes[m]));
            print_under(t_mirrored(sizes[i].n_replicas), want);
            print_under(t_cores_strategy(sizes[i].n_replicas, sizes[i].n_cores, sizes[i].mesh),
                        got);
            for (int r = 0; r < sizes[i].n_replicas; r++) {
                assert_string_equal(got[r], want[r]);
                assert_non_null(strstr(got[r], "carry: tensor(f32 (6,) ["));
                assert_non_null(strstr(got[r], "rows: tensor(i64 () 5)\n"));
            }
        }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
}

/* ---- words ---- */

static void record_lookup(ch_step *s, void *arg)
{
    ch_node *words = ch_step_in(s, 0), *ids = ch_table_lookup(arg, words);

    ch_step_out(s, "ids", by_columns(ids));
    ch_step_out(s, "rows", ch_rows(words));
}

/* Ops that accept words: a lookup, which the cores divide, and the number of rows. */
static void words_are_looked_up_in_parts(void **state)
{
    static const char *const word[] = {"one", "two", "three", "four", "five", "six"};
    ch_str                   all[ROWS * IN];
    ch_tensor               *keys = NULL, *words = NULL;
    ch_table                *table = NULL;
    ch_tuple                *in, *out = NULL;

    (void)state;
    for (int i = 0; i < ROWS * IN; i++)
        all[i] = (ch_str){word[i * 5 % 6], strlen(word[i * 5 % 6])};
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(6), all, &keys));
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(ROWS, IN), all, &words));
    t_ok(ch_table_new(keys, NULL, -1, &table));
    in = t_tuple(1, &words);
    for (int i = 0; i < SIZES; i++) {
        ch_strategy     *st = t_cores_strategy(1, sizes[i].n_cores, sizes[i].mesh);
        ch_function     *f = t_function(record_lookup, table);
        const int64_t   *id;
        ch_layout_report r;

        t_ok(ch_strategy_run(st, f, in, &out));
        t_ok(ch_function_report_layouts(f, &r, NULL));
        id = ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0));
        for (int k = 0; k < ROWS * IN; k++)
            assert_int_equal(id[k], k % 6);
        assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 1), 0)),
                         ROWS);
        assert_int_equal(r.all_gather.bytes + r.all_to_all.bytes + r.other.bytes, 0);
        assert_true(r.work < 1);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    ch_tuple_unref(in);
    ch_table_unref(table);
    ch_tensor_unref(keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_call_gets_whole_values_once_for_each_replica),
        cmocka_unit_test(effect_that_fails_names_core_0_and_changes_no_variable),
        cmocka_unit_test(prints_are_those_of_replicas_of_one_device),
        cmocka_unit_test(words_are_looked_up_in_parts),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
