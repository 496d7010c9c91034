/* test/spmd/test_report.c -- reports of divided steps: the numbers, the printed plan, and the
 * lines in the log.
 *
 * Printed plans are compared with whole texts; train.h has their steps. test_divide.c compares
 * the planned transfers of many steps with the measured ones.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>

#include "../strategy/cores.h"
#include "base/config.h"
#include "train.h"

enum { CORES = 4, TEXT = 1 << 15 };

/* ---- functions ---- */

/* A function, with its variables and inputs. */
typedef struct task {
    ch_strategy *st;
    ch_function *f;
    ch_var      *v[2];
    ch_tuple    *in;
} task;

static void add_var(task *t, int i, const char *name, ch_shape shape, const int *split)
{
    t_ok(ch_var_new(t->st,
                    &(ch_var_spec){.name = name,
                                   .shape = shape,
                                   .init = ch_init_uniform(-1, 1),
                                   .split = split,
                                   .n_split = split != NULL ? shape.rank : 0,
                                   .aggregation = CH_AGGREGATE_SUM},
                    &t->v[i]));
}

/* Takes over the references to the inputs. */
static void add_step(task *t, const char *name, ch_step_fn step, int n, ch_tensor *const *in)
{
    t->in = t_tuple(n, in);
    t_ok(ch_function_new(name, step, t->v, &t->f));
    ch_function_static_rows(t->f);
}

static void end(task *t)
{
    ch_function_unref(t->f);
    ch_tuple_unref(t->in);
    for (int i = 0; i < 2; i++)
        ch_var_unref(t->v[i]);
    ch_strategy_unref(t->st);
}

/* Two dense layers, split by units, that are trained. Takes over the strategy. */
static void perceptron(task *t, ch_strategy *st)
{
    ch_tensor *in[2] = {t_noise(ch_shape_of(128, 784), 1), t_noise(ch_shape_of(128, 10), 2)};

    *t = (task){.st = st};
    add_var(t, 0, "dense/kernel", ch_shape_of(784, 512), (int[]){CH_OFF, 0});
    add_var(t, 1, "dense_1/kernel", ch_shape_of(512, 10), (int[]){0, CH_OFF});
    add_step(t, "train", train, 2, in);
}

/* A task whose layouts come from annotations, a variable, a rule and neighbours. */
static void many_origins(task *t)
{
    const ch_split_rule rule = {"*kernel", 2, {CH_OFF, 1}};
    ch_tensor          *in = t_noise(ch_shape_of(8, 8), 1);

    *t = (task){.st = NULL};
    t_ok(t_cores_new(1, CORES, (int[]){2, 2, 0}, 1, &rule, &t->st));
    add_var(t, 0, "table", ch_shape_of(8, 8), (int[]){0, CH_OFF});
    add_var(t, 1, "dense/kernel", ch_shape_of(8, 10), NULL);
    add_step(t, "origins", origins, 1, &in);
}

static void run(task *t)
{
    t_ok(ch_strategy_run(t->st, t->f, t->in, NULL));
}

/* ---- printed plans ---- */

/* Checks the printed plan of the last run. */
static void check_print(ch_function *f, const char *want)
{
    static char text[TEXT];
    const char *line = text;

    assert_in_range(ch_function_print_layouts(f, text, sizeof(text)), 1, TEXT - 1);
    for (int i = 0; text[i] != '\0' && text[i] == want[i]; i++)
        if (text[i] == '\n')
            line = &text[i + 1];
    if (strcmp(text, want) != 0) {
        fputs(text, stderr);
        fail_msg("the plan has another line: %.*s", (int)strcspn(line, "\n"), line);
    }
}

/* clang-format off */
static const char perceptron_plan[] =
    "train: 23 calls on 4 logical devices, 1 program; devices exchange 30,720 B\n"
    "%0 input  f32(128, 784)  on the host\n"
    "%1 input  f32(128, 10)  on the host\n"
    "%2 read dense/kernel  f32(784, 512)  {1, 4}, (784, 128) each: variable dense/kernel\n"
    "%3 read dense_1/kernel  f32(512, 10)  {4, 1}, (128, 10) each: variable dense_1/kernel\n"
    "%4 matmul  f32(128, 512)  {1, 4}, (128, 128) each: from %2      net/dense, at train.h:20\n"
    "%5 relu  f32(128, 512)  {1, 4}, (128, 128) each: from %4        net/dense, at train.h:20\n"
    "%6 matmul  f32(128, 10)  partial sum of 4, (128, 10) each       net/dense_1, at train.h:23\n"
    "    all-reduce  30,720 B  for sub %7 at train.h:26, which is replicated: nothing splits it\n"
    "%7 sub  f32(128, 10)  replicated: nothing splits it             at train.h:26\n"
    "%8 square  f32(128, 10)  replicated: nothing splits it          at train.h:26\n"
    "%9 mean  f32()  replicated: nothing splits it                   at train.h:26\n"
    "    host  4 B  for result loss\n"
    "%10 fill  f32()  replicated: nothing splits it                  at train.h:27\n"
    "%11 reshape  f32(1, 1)  replicated: nothing splits it           at train.h:26\n"
    "%12 div_count  f32(1, 1)  replicated: nothing splits it         at train.h:26\n"
    "%13 broadcast_to  f32(128, 10)  replicated: nothing splits it   at train.h:26\n"
    "%14 constant  f64()  on the host                                at train.h:26\n"
    "%15 cast  f32()  replicated: nothing splits it                  at train.h:26\n"
    "%16 mul  f32(128, 10)  replicated: nothing splits it            at train.h:26\n"
    "%17 mul  f32(128, 10)  replicated: nothing splits it            at train.h:26\n"
    "%18 matmul  f32(128, 512)  {1, 4}, (128, 128) each: from %3     at train.h:23\n"
    "%19 matmul  f32(512, 10)  {4, 1}, (128, 10) each: from %28 through mul at train.h:29  at train.h:23\n"
    "%20 relu_mask  f32(128, 512)  {1, 4}, (128, 128) each: from %5  at train.h:20\n"
    "%21 matmul  f32(784, 512)  {1, 4}, (784, 128) each: from %24 through mul at train.h:29\n"
    "                                                                at train.h:20\n"
    "%22 constant  f64()  on the host                                at train.h:29\n"
    "%23 cast  f32()  replicated: nothing splits it                  at train.h:29\n"
    "%24 mul  f32(784, 512)  {1, 4}, (784, 128) each: from %25 through sub  at train.h:29\n"
    "%25 sub  f32(784, 512)  {1, 4}, (784, 128) each: variable dense/kernel  at train.h:29\n"
    "%26 constant  f64()  on the host                                at train.h:29\n"
    "%27 cast  f32()  replicated: nothing splits it                  at train.h:29\n"
    "%28 mul  f32(512, 10)  {4, 1}, (128, 10) each: from %29 through sub  at train.h:29\n"
    "%29 sub  f32(512, 10)  {4, 1}, (128, 10) each: variable dense_1/kernel  at train.h:29\n";

static const char origins_plan[] =
    "origins: 17 calls on 4 logical devices, 3 programs; devices exchange 1,888 B\n"
    "%0 input  f32(8, 8)  on the host\n"
    "    host  256 B  for annotation %2 at train.h:39\n"
    "%1 read table  f32(8, 8)  {2, 1} in 2 copies, (4, 8) each: variable table\n"
    "    all-gather  512 B  for sort %7 at train.h:42, which is replicated: it has the least cost\n"
    "%2 annotation  f32(8, 8)  {4, 1}, (2, 8) each                   at train.h:39\n"
    "%3 read dense/kernel  f32(8, 10)  {1, 2} in 2 copies, (8, 5) each: rule \"*kernel\"\n"
    "    transfer  160 B  for matmul %5 at train.h:40, which is on core 2: annotation at train.h:41\n"
    "%4 tanh  f32(8, 8)  {4, 1}, (2, 8) each: from %2                at train.h:40\n"
    "    transfer  192 B  for matmul %5 at train.h:40, which is on core 2: annotation at train.h:41\n"
    "%5 matmul  f32(8, 10)  on core 2: annotation at train.h:41      at train.h:40\n"
    "%6 annotation  f32(8, 10)  on core 2                            at train.h:41\n"
    "    host  320 B  for result y\n"
    "%7 sort  f32(8, 8)  replicated: it has the least cost           at train.h:42\n"
    "%8 sort  i64(8, 8)  replicated: nothing splits it               at train.h:42\n"
    "%9 constant  f64()  on the host                                 at train.h:43\n"
    "%10 sum  f32()  replicated: nothing splits it                   at train.h:43\n"
    "%11 cast  f32()  replicated: nothing splits it                  at train.h:43\n"
    "%12 less  bool()  replicated: nothing splits it                 at train.h:43\n"
    "check small  on core 0: it has an effect, so a single core executes it  at train.h:43\n"
    "%14 mul  f32(8, 8)  {4, 1}, (2, 8) each: from %2                at train.h:44\n"
    "    all-gather  768 B  for annotation %15 at train.h:44, which is replicated\n"
    "%15 annotation  f32(8, 8)  replicated                           at train.h:44\n"
    "%16 annotation  f32(8, 8)  {1, 2} in 2 copies, (8, 4) each      at train.h:45\n"
    "%17 add  f32(8, 8)  {2, 2}, (4, 4) each: it has the least cost  at train.h:45\n"
    "    all-gather  256 B  for the new value of variable table, which is {2, 1} in 2 copies\n"
    "%18 replica_count  i32()  replicated: it is a number            at train.h:46\n"
    "%19 cast  f32()  replicated: nothing splits it                  at train.h:46\n"
    "%20 mul  f32(8, 8)  replicated: nothing splits it               at train.h:46\n"
    "%21 sum  f32(8,)  replicated: nothing splits it                 at train.h:46\n"
    "    host  32 B  for result 1\n";

static const char bodies_plan[] =
    "bodies: 17 calls on 4 logical devices, 1 program; devices exchange 2,760 B\n"
    "%0 input  f32(6, 4, 8)  on the host\n"
    "    host  768 B  for scan %4 at train.h:92\n"
    "%1 read kernel  f32(8, 8)  {4, 1}, (2, 8) each: variable kernel\n"
    "%2 fill  f32(4, 8)  {1, 4}, (4, 2) each: annotation             at train.h:91\n"
    "%3 annotation  f32(4, 8)  {1, 4}, (4, 2) each                   at train.h:91\n"
    "%4 scan  f32(4, 8)  {1, 4}, (4, 2) each: from %0 in its body    at train.h:92\n"
    "    body, 6 times:\n"
    "        %0 input  f32(4, 8)  {1, 4}, (4, 2) each: from %3 outside the body  at train.h:92\n"
    "        %1 input  f32(4, 8)  {1, 4}, (4, 2) each: from %2 through add at train.h:55  at train.h:92\n"
    "        %2 add  f32(4, 8)  {1, 4}, (4, 2) each: from %0         at train.h:55\n"
    "        %3 tanh  f32(4, 8)  {1, 4}, (4, 2) each: from %2        at train.h:55\n"
    "        %4 input  f32(8, 8)  {4, 1}, (2, 8) each: from %1 outside the body\n"
    "        %5 matmul  f32(4, 8)  partial sum of 4, (4, 8) each     at train.h:55\n"
    "            reduce-scatter  384 B  for result 0, which is {1, 4}: from %4 outside the body\n"
    "%5 scan  f32(6, 4, 8)  {1, 1, 4}, (6, 4, 2) each: from %5 in its body  at train.h:92\n"
    "    host  768 B  for result all\n"
    "%6 scan  f32(6, 4, 8)  {1, 1, 4}, (6, 4, 2) each: from %0 in its body  at train.h:92\n"
    "%7 constant  f64()  on the host                                 at train.h:61\n"
    "%8 sum  f32()  partial sum of 4, () each                        at train.h:61\n"
    "    all-reduce  24 B  for less %10 at train.h:61, which is replicated: nothing splits it\n"
    "%9 cast  f32()  replicated: nothing splits it                   at train.h:61\n"
    "%10 less  bool()  replicated: nothing splits it                 at train.h:61\n"
    "%11 scan  f32(4, 8)  {1, 4}, (4, 2) each: from %0 in its body   at train.h:93\n"
    "    body:\n"
    "        %0 input  f32(4, 8)  {1, 4}, (4, 2) each: from %4 outside the body  at train.h:93\n"
    "        %1 input  bool()  replicated: nothing splits it         at train.h:93\n"
    "        %2 input  f32(8, 8)  {4, 1}, (2, 8) each: from %1 outside the body\n"
    "        %3 matmul  f32(4, 8)  partial sum of 4, (4, 8) each     at train.h:70\n"
    "            reduce-scatter  384 B  for result 0, which is {1, 4}: from %11 outside the body\n"
    "        %4 constant  f64()  on the host                         at train.h:61\n"
    "        %5 sum  f32()  partial sum of 4, () each                at train.h:61\n"
    "            all-reduce  24 B  for less %7 at train.h:61, which is replicated: nothing splits it\n"
    "        %6 cast  f32()  replicated: nothing splits it           at train.h:61\n"
    "        %7 less  bool()  replicated: nothing splits it          at train.h:61\n"
    "%12 scan  bool()  replicated: nothing splits it                 at train.h:93\n"
    "%13 scan  f32(5, 4, 8)  {1, 1, 4}, (5, 4, 2) each: from %0 in its body  at train.h:93\n"
    "%14 scan  i64()  replicated: nothing splits it                  at train.h:93\n"
    "%15 constant  f64()  on the host                                at train.h:94\n"
    "%16 sum  f32()  partial sum of 4, () each                       at train.h:94\n"
    "    all-reduce  24 B  for less %18 at train.h:94, which is replicated: nothing splits it\n"
    "%17 cast  f32()  replicated: nothing splits it                  at train.h:94\n"
    "%18 less  bool()  replicated: nothing splits it                 at train.h:94\n"
    "%19 cond  f32(4, 8)  {1, 4}, (4, 2) each: from %1 in its body   at train.h:94\n"
    "    host  128 B  for result y\n"
    "    then:\n"
    "        %0 input  f32(4, 8)  {1, 4}, (4, 2) each: from %11 outside the body\n"
    "        %1 relu  f32(4, 8)  {1, 4}, (4, 2) each: from %0        at train.h:76\n"
    "    otherwise:\n"
    "        %0 input  f32(4, 8)  {1, 4}, (4, 2) each: from %11 outside the body\n"
    "        %1 neg  f32(4, 8)  {1, 4}, (4, 2) each: from %0         at train.h:82\n";
/* clang-format on */

static void printed_plan_of_a_perceptron_names_transfers_with_their_lines(void **state)
{
    task t;

    (void)state;
    perceptron(&t, t_cores_strategy(1, CORES, NULL));
    run(&t);
    check_print(t.f, perceptron_plan);
    end(&t);
}

static void printed_plan_has_the_origin_of_each_layout(void **state)
{
    task t;

    (void)state;
    many_origins(&t);
    run(&t);
    check_print(t.f, origins_plan);
    end(&t);
}

/* The number of iterations of the loop over the state is known to a run only: the plan has
 * one. */
static void printed_plan_shows_the_bodies_of_loops_and_branches(void **state)
{
    task             t = {.st = t_cores_strategy(1, CORES, NULL)};
    ch_tensor       *in = t_noise(ch_shape_of(6, 4, 8), 1);
    ch_layout_report planned, measured;

    (void)state;
    add_var(&t, 0, "kernel", ch_shape_of(8, 8), (int[]){0, CH_OFF});
    add_step(&t, "bodies", bodies, 1, &in);
    run(&t);
    check_print(t.f, bodies_plan);
    t_ok(ch_function_report_layouts(t.f, &planned, &measured));
    assert_int_equal(planned.reduce_scatter.bytes, (6 + 1) * 384);
    assert_int_equal(measured.reduce_scatter.bytes, (6 + 5) * 384);
    assert_int_equal(planned.all_reduce.bytes, (1 + 2) * 24);
    assert_int_equal(measured.all_reduce.bytes, (5 + 2) * 24);
    end(&t);
}

static void printed_plan_is_truncated_as_by_snprintf(void **state)
{
    task   t;
    size_t n = sizeof(perceptron_plan) - 1;
    char   text[sizeof(perceptron_plan) + 8];

    (void)state;
    perceptron(&t, t_cores_strategy(1, CORES, NULL));
    memset(text, 'x', sizeof(text));
    assert_int_equal(ch_function_print_layouts(t.f, text, sizeof(text)), 0); /* no run */
    assert_string_equal(text, "");
    run(&t);
    assert_int_equal(ch_function_print_layouts(t.f, NULL, 0), n);
    for (size_t size = 0; size <= n + 1; size += size < 200 ? 1 : 97) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(ch_function_print_layouts(t.f, text, size), n);
        if (size > 0) {
            assert_memory_equal(text, perceptron_plan, size - 1);
            assert_int_equal(text[size - 1], '\0');
        }
        assert_int_equal(text[size], 'x');
    }
    assert_int_equal(ch_function_print_layouts(NULL, text, sizeof(text)), 4);
    assert_string_equal(text, "NULL");
    end(&t);
}

/* ---- numbers ---- */

static ch_layout_report planned_of(const task *t)
{
    ch_layout_report r;

    t_ok(ch_function_report_layouts(t->f, &r, NULL));
    return r;
}

static void check_traffic(ch_traffic got, int64_t count, int64_t bytes)
{
    assert_int_equal(got.count, count);
    assert_int_equal(got.bytes, bytes);
}

static void report_has_the_numbers_of_the_last_run(void **state)
{
    const int64_t    tiles = (784 * 128 + 128 * 10) * (int64_t)sizeof(float);
    ch_layout_report report[2]; /* planned, measured */
    task             t;

    (void)state;
    perceptron(&t, t_cores_strategy(1, CORES, NULL));
    t_refused(ch_function_report_layouts(t.f, &report[0], NULL), CH_FAILED_PRECONDITION,
              "train", "has not run");
    t_refused(ch_function_report_layouts(NULL, &report[0], NULL), CH_INVALID_ARGUMENT,
              "report layouts", "NULL");
    for (int i = 0; i < 3; i++)
        run(&t);
    t_ok(ch_function_report_layouts(t.f, NULL, NULL));
    t_ok(ch_function_report_layouts(t.f, &report[0], &report[1]));
    for (int i = 0; i < 2; i++) {
        const ch_layout_report *r = &report[i];

        assert_int_equal(r->devices, CORES);
        assert_int_equal(r->programs, 1);
        assert_int_equal(r->calls, 23);
        assert_int_equal(r->replicated_calls, 0);
        check_traffic(r->all_reduce, 1, 30720);
        check_traffic(r->reduce_scatter, 0, 0);
        check_traffic(r->all_gather, 0, 0);
        check_traffic(r->all_to_all, 0, 0);
        check_traffic(r->halo, 0, 0);
        check_traffic(r->other, 0, 0);
        check_traffic(r->host, 1, sizeof(float)); /* the loss */
        check_traffic(r->cross_replica, 0, 0);
        assert_true(r->work > 0.25 && r->work < 0.26);
        for (int c = CORES; c < CH_LOGICAL_DEVICES_MAX; c++)
            assert_int_equal(r->peak_bytes[c], 0);
    }
    for (int c = 0; c < CORES; c++) {
        assert_true(report[0].peak_bytes[c] > tiles);
        assert_int_equal(report[0].peak_bytes[c], report[0].peak_bytes[0]);
        assert_true(report[1].peak_bytes[c] >= report[0].peak_bytes[c]);
    }
    end(&t);
}

static void rows_and_columns(ch_step *s, void *arg)
{
    ch_node *x = ch_split_to_logical_devices(ch_step_in(s, 0), 2, (int[]){1, 4});

    (void)arg;
    x = ch_sort(x, 1, false);
    ch_step_out(s, "sorted", x);
    ch_step_out(s, "y", ch_tanh(ch_mesh_split(ch_step_in(s, 1), 2, (int[]){0, CH_OFF})));
}

/* A sort needs whole rows: every device gathers them. The other calls are two annotations and
 * tanh. */
static void report_counts_calls_that_every_device_computes_whole(void **state)
{
    task             t = {.st = t_cores_strategy(1, CORES, NULL)};
    ch_tensor       *in[2] = {t_noise(ch_shape_of(8, 8), 1), t_noise(ch_shape_of(8, 8), 2)};
    ch_layout_report r;

    (void)state;
    add_step(&t, "sort", rows_and_columns, 2, in);
    run(&t);
    r = planned_of(&t);
    assert_int_equal(r.replicated_calls, 1);
    assert_int_equal(r.calls, 4);
    check_traffic(r.all_gather, 1, 3 * 256);
    /* parts of both inputs and of the result y, and the result of the sort: by 4 devices each,
     * except the last */
    check_traffic(r.host, 4, 4 * 256);
    end(&t);
}

static void report_has_the_collectives_of_all_replicas(void **state)
{
    const int64_t    variables = (784 * 512 + 512 * 10) * (int64_t)sizeof(float);
    ch_layout_report planned, measured;

    (void)state;
    for (int cores = 1; cores <= CORES; cores *= 2) {
        task t;

        perceptron(&t, cores == 1 ? t_mirrored(2) : t_cores_strategy(2, cores, NULL));
        run(&t);
        t_ok(ch_function_report_layouts(t.f, &planned, &measured));
        assert_int_equal(planned.devices, cores);
        assert_int_equal(planned.cross_replica.bytes, 2 * variables);
        assert_int_equal(measured.cross_replica.bytes, 2 * variables);
        assert_int_equal(measured.cross_replica.count, planned.cross_replica.count);
        end(&t);
    }
}

static void report_without_logical_devices_has_one_device(void **state)
{
    ch_layout_report r;
    task             t;

    (void)state;
    perceptron(&t, t_mirrored(2));
    run(&t);
    r = planned_of(&t);
    assert_int_equal(r.programs, 1);
    assert_int_equal(r.replicated_calls, 0);
    check_traffic(r.all_reduce, 0, 0);
    check_traffic(r.host, 0, 0);
    assert_true(r.work == 1);
    assert_true(r.peak_bytes[0] > 0 && r.peak_bytes[1] == 0);
    check_print(t.f, "train: 25 calls on 1 logical device, 1 program; "
                     "collectives between replicas move 3,252,224 B\n");
    end(&t);
}

/* ---- the log ---- */

typedef struct records {
    int  n;
    char text[8][512];
} records;

static void collect(const ch_log_record *record, void *arg)
{
    records *r = arg;

    if (strcmp(record->code, "replicated") != 0 && strcmp(record->code, "reshard") != 0)
        return;
    assert_int_equal(record->level, CH_LOG_INFO);
    assert_in_range(r->n, 0, 7);
    (void)snprintf(r->text[r->n++], sizeof(r->text[0]), "%s: %s", record->code, record->text);
}

/* Runs a task three times with a limit of COHORT_RESHARD_NOTICE, and collects the records of
 * the log. Ends the task. */
static records logged(task *t, const char *notice)
{
    records r = {0};

    ch_log_set_sink(collect, &r, CH_LOG_INFO);
    t_ok(ch__config_set("reshard_notice", notice));
    for (int i = 0; i < 3; i++)
        run(t);
    t_ok(ch__config_set("reshard_notice", "1M"));
    ch_log_set_sink(NULL, NULL, CH_LOG_INFO);
    end(t);
    return r;
}

/* The transfers of the plan are in origins_plan. Annotations ask for those to device 2, and for
 * the one that replicates a value. */
static void log_has_each_replicated_call_and_each_large_transfer_once(void **state)
{
    static const char *const want[] = {
        "reshard: origins: all-gather of 512 B: read table %1 is {2, 1} in 2 copies, and is "
        "needed for sort %7 at train.h:42, which is replicated: it has the least cost",
        "replicated: origins: sort %7 at train.h:42: every logical device computes the whole "
        "call, although an input is split; its result is replicated: it has the least cost",
        "reshard: origins: all-gather of 256 B: add %17 at train.h:45 is {2, 2}, and is needed "
        "for the new value of variable table, which is {2, 1} in 2 copies"};
    task    t;
    records r;

    (void)state;
    many_origins(&t);
    r = logged(&t, "100");
    assert_int_equal(r.n, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(r.text[i], want[i]);
}

static int transfers_logged(ch_strategy *st, const char *notice)
{
    task t;

    perceptron(&t, st);
    return logged(&t, notice).n;
}

static void log_has_transfers_of_more_bytes_than_the_limit(void **state)
{
    (void)state;
    assert_int_equal(transfers_logged(t_cores_strategy(1, CORES, NULL), "30719"), 1);
    assert_int_equal(transfers_logged(t_cores_strategy(1, CORES, NULL), "30720"), 0);
    assert_int_equal(transfers_logged(t_mirrored(2), "0"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed_plan_of_a_perceptron_names_transfers_with_their_lines),
        cmocka_unit_test(printed_plan_has_the_origin_of_each_layout),
        cmocka_unit_test(printed_plan_shows_the_bodies_of_loops_and_branches),
        cmocka_unit_test(printed_plan_is_truncated_as_by_snprintf),
        cmocka_unit_test(report_has_the_numbers_of_the_last_run),
        cmocka_unit_test(report_counts_calls_that_every_device_computes_whole),
        cmocka_unit_test(report_has_the_collectives_of_all_replicas),
        cmocka_unit_test(report_without_logical_devices_has_one_device),
        cmocka_unit_test(log_has_each_replicated_call_and_each_large_transfer_once),
        cmocka_unit_test(log_has_transfers_of_more_bytes_than_the_limit),
    };

    return cmocka_run_group_tests(tests, t_eight_gpus, NULL);
}
