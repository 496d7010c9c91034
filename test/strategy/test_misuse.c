/* test/strategy/test_misuse.c -- mistakes of programs in steps: each gives an error with a
 * remedy, and none crashes.
 *
 * Each mistake is a small function that is recorded in a step. The tests check the code and the
 * words of the error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

typedef ch_node *(*mistake)(ch_step *s, ch_node *x);

static ch_node *kept; /* a node that a branch leaks to its caller, which is not allowed */

static void square_and_keep(ch_step *s, void *arg, ch_node **out)
{
    (void)s;
    out[0] = kept = ch_mul(arg, arg);
}

static void as_it_is(ch_step *s, void *arg, ch_node **out)
{
    (void)s;
    out[0] = arg;
}

static ch_node *node_of_a_branch(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_cond(ch_greater(ch_sum_all(x), ch_number(s, 0)), 1, square_and_keep, as_it_is, x, &y);
    return ch_add(y, kept);
}

static ch_node *node_of_an_earlier_step(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_add(x, kept);
}

static ch_node *rank_9(ch_step *s, ch_node *x)
{
    (void)x;
    return ch_fill(s, CH_F32, (ch_shape){.rank = 9}, 1);
}

static ch_node *reshape_to_rank_9(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_reshape(x, (ch_shape){.rank = 9});
}

static ch_node *too_large_a_number(ch_step *s, ch_node *x)
{
    return ch_add(ch_cast(x, CH_U8), ch_number(s, 300));
}

static ch_node *a_negative_number(ch_step *s, ch_node *x)
{
    return ch_mul(ch_cast(x, CH_U8), ch_number(s, -1));
}

static ch_node *fill_that_does_not_fit(ch_step *s, ch_node *x)
{
    (void)x;
    return ch_fill(s, CH_I8, ch_shape_of(2), 300);
}

static ch_node *pad_that_does_not_fit(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_pad(ch_cast(x, CH_U8), 2, (int64_t[]){0, 1}, (int64_t[]){0, 1}, 300);
}

static ch_node *sum_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_sum(x, 1, NULL, false);
}

static ch_node *sum_of_fewer_than_no_axes(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_sum(x, -3, (int[]){0}, false);
}

static ch_node *squeeze_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_squeeze(x, 1, NULL);
}

static ch_node *transpose_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_transpose(x, 2, NULL);
}

static ch_node *reverse_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_reverse(x, 1, NULL);
}

static ch_node *tile_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_tile(x, 2, NULL);
}

static ch_node *split_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    ch_split(x, 1, 2, NULL, NULL);
    return x;
}

static ch_node *gradient_from(ch_node *y, ch_node *dy, ch_node *x)
{
    ch_node *dx = NULL;

    ch_gradients(y, dy, 1, &x, &dx);
    return dx;
}

static ch_node *gradient_from_another_shape(ch_step *s, ch_node *x)
{
    return gradient_from(ch_square(x), ch_fill(s, CH_F32, ch_shape_of(7), 1), x);
}

static ch_node *gradient_from_another_dtype(ch_step *s, ch_node *x)
{
    (void)s;
    return gradient_from(ch_square(x), ch_cast(x, CH_F64), x);
}

static ch_node *gradients_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    ch_gradients(ch_sum_all(x), NULL, 1, NULL, NULL);
    return x;
}

static ch_node *cond_without_branch(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_cond(ch_greater(ch_sum_all(x), ch_number(s, 0)), 1, as_it_is, NULL, x, &y);
    return y;
}

static ch_node *scan_without_function(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = 2}, NULL, NULL, &x, NULL, &y, NULL);
    return y;
}

static ch_node *scan_without_description(ch_step *s, ch_node *x)
{
    ch_scan(s, NULL, NULL, NULL, &x, NULL, NULL, NULL);
    return x;
}

static ch_node *is_positive(ch_step *s, void *arg, ch_node *const *state)
{
    (void)arg;
    return ch_greater(ch_sum_all(state[0]), ch_number(s, 0));
}

static void to_a_scalar(ch_step *s, void *arg, ch_node *const *state, ch_node **next)
{
    (void)s, (void)arg;
    next[0] = ch_sum_all(state[0]);
}

static ch_node *while_that_changes_shape(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_while(s, 1, 3, is_positive, to_a_scalar, NULL, &x, &y);
    return y;
}

static ch_node *unknown_padding(ch_step *s, ch_node *x)
{
    ch_node *filter = ch_fill(s, CH_F32, ch_shape_of(1, 1, 1, 1), 1);

    return ch_conv2d(ch_reshape(x, ch_shape_of(-1, 4, 1, 1)), filter,
                     &(ch_conv_options){.padding = (ch_padding)9});
}

static ch_node *the_same_name_twice(ch_step *s, ch_node *x)
{
    ch_step_out(s, "y", x);
    return x;
}

static ch_node *a_composite_is_named(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_stack(2, (ch_node *[]){x, ch_sum_all(x)}, 0);
}

static ch_node *concat_of_nothing(ch_step *s, ch_node *x)
{
    (void)s, (void)x;
    return ch_concat(0, NULL, 0);
}

static ch_node *stack_of_nothing(ch_step *s, ch_node *x)
{
    (void)s, (void)x;
    return ch_stack(0, NULL, 0);
}

/* The first op that gets NULL reports the error, although it has no step. */
static ch_node *an_op_of_null_only(ch_step *s, ch_node *x)
{
    (void)s, (void)x;
    return ch_exp(ch_relu(NULL));
}

static ch_node *strided_slice_by_zero(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_strided_slice(x, 1, (int64_t[]){0}, (int64_t[]){2}, (int64_t[]){0});
}

static ch_node *slice_without_list(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_slice(x, 1, NULL, (int64_t[]){2});
}

static ch_node *transposed_convolution(ch_step *s, ch_node *x)
{
    ch_node *filter = ch_fill(s, CH_F32, ch_shape_of(2, 2, 1, 1), 1);

    return ch_conv2d_transpose(ch_reshape(x, ch_shape_of(-1, 2, 2, 1)), filter, 9, 9, NULL);
}

static ch_node *segments_out_of_range(ch_step *s, ch_node *x)
{
    (void)s;
    return ch_segment_sum(x, ch_range_like(x, 0, CH_I32), 2); /* there are 3 rows */
}

static ch_node *gather_nd_out_of_range(ch_step *s, ch_node *x)
{
    return ch_gather_nd(x, ch_fill(s, CH_I32, ch_shape_of(1, 2), 7));
}

static ch_node *matmul_of_i16(ch_step *s, ch_node *x)
{
    (void)s;
    x = ch_cast(x, CH_I16);
    return ch_matmul(x, true, x, false);
}

static ch_node *while_of_negative_limit(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_while(s, 1, -1, is_positive, to_a_scalar, NULL, &x, &y);
    return y;
}

static void never(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                  ch_node **next, ch_node **y)
{
    (void)s, (void)arg, (void)carry, (void)x, (void)next, (void)y;
    fail();
}

static ch_node *scan_of_negative_count(ch_step *s, ch_node *x)
{
    ch_scan(s, &(ch_scan_spec){.n_carry = -1, .length = 2}, never, NULL, &x, NULL, NULL, NULL);
    return x;
}

static void as_a_sum(ch_step *s, void *arg, ch_node **out)
{
    (void)s;
    out[0] = ch_sum_all(arg);
}

static ch_node *branches_that_differ(ch_step *s, ch_node *x)
{
    ch_node *y = NULL;

    ch_cond(ch_greater(ch_sum_all(x), ch_number(s, 0)), 1, as_it_is, as_a_sum, x, &y);
    return y;
}

static const struct {
    mistake     make;
    const char *says;
} mistakes[] = {
    {node_of_a_branch, "a branch, loop body or step that has ended"},
    {rank_9, "rank 9"},
    {reshape_to_rank_9, "rank 9"},
    {too_large_a_number, "u8"},
    {a_negative_number, "u8"},
    {fill_that_does_not_fit, "i8 does not hold 300"},
    {pad_that_does_not_fit, "u8 does not hold 300"},
    {sum_without_list, "NULL"},
    {sum_of_fewer_than_no_axes, "negative length"},
    {squeeze_without_list, "the list of axes is NULL"},
    {transpose_without_list, "transpose"},
    {reverse_without_list, "reverse"},
    {tile_without_list, "tile"},
    {split_without_list, "the list of results is NULL"},
    {gradients_without_list, "a list of nodes is NULL"},
    {gradient_from_another_shape, "gradient: dy is f32(7), want f32("},
    {gradient_from_another_dtype, "gradient: dy is f64("},
    {cond_without_branch, "cond: a branch"},
    {scan_without_function, "scan: the description or the function is NULL"},
    {scan_without_description, "scan: the description or the function is NULL"},
    {while_that_changes_shape, "goes into the body as f32(rows, 4) and comes out as f32()"},
    {unknown_padding, "CH_PAD_SAME"},
    {the_same_name_twice, "two outputs are named \"y\""},
    {a_composite_is_named, "stack: "},
    {concat_of_nothing, "concat(): nothing to join"},
    {stack_of_nothing, "nothing to join"},
    {an_op_of_null_only, "relu: input 0 is NULL"},
    {strided_slice_by_zero, "strided_slice: "},
    {slice_without_list, "slice: the list of beginnings or of sizes is NULL"},
    {transposed_convolution, "conv2d_transpose: "},
    {segments_out_of_range, "segment_sum: "},
    {gather_nd_out_of_range, "gather_nd: "},
    {matmul_of_i16, "cast it to a float, i8, u8, i32 or i64"},
    {while_of_negative_limit, "while: limit is -1, want at least 0"},
    {scan_of_negative_count, "scan: n_carry is -1, want at least 0"},
    {branches_that_differ, "value 0 differs between the branches: f32(rows, 4) and f32()"},
};

static void record(ch_step *s, void *arg)
{
    mistake make = *(const mistake *)arg;

    ch_step_out(s, "y", make(s, ch_step_in(s, 0)));
}

static void step_recording_reports_every_mistake(void **state)
{
    ch_function *f;

    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        mistake   make = mistakes[i].make;
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(3, 4), 1)});

        f = t_function(record, &make);
        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, mistakes[i].says,
                  "");
        ch_tuple_unref(in);
        ch_function_unref(f);
    }
    (void)state;
}

static void keep_the_input(ch_step *s, void *arg)
{
    (void)arg;
    kept = ch_neg(ch_step_in(s, 0));
    ch_step_out(s, "y", kept);
}

/* The other function still exists, which is the usual case. */
static void a_node_of_another_functions_step_is_refused(void **state)
{
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(3, 4), 1)});
    mistake      make = node_of_an_earlier_step;
    ch_function *before = t_function(keep_the_input, NULL), *f = t_function(record, &make);

    t_ok(ch_strategy_run(NULL, before, in, NULL));
    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "add", "has ended");
    ch_function_unref(f);
    ch_function_unref(before);
    ch_tuple_unref(in);
    (void)state;
}

static void a_value_with_too_many_components_is_refused(void **state)
{
    ch_tensor   *x = t_noise(ch_shape_of(2, 4), 1);
    ch_value    *v = NULL;
    ch_tuple    *in = NULL;
    ch_function *f = t_function(keep_the_input, NULL);
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_value_new(CH_PER_REPLICA, 3, (ch_tensor *[]){x, x, x}, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    t_refused(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT,
              "step: input 0 has 3 components", "2 replicas");
    ch_tuple_unref(in);
    ch_value_unref(v);
    ch_tensor_unref(x);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static void types_that_differ_between_replicas_are_named(void **state)
{
    ch_tensor   *x = t_noise(ch_shape_of(2, 4), 1), *y = t_noise(ch_shape_of(8), 1);
    ch_value    *v = NULL;
    ch_tuple    *in = NULL;
    ch_function *f = t_function(keep_the_input, NULL);
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_value_new(CH_PER_REPLICA, 2, (ch_tensor *[]){x, y}, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    t_refused(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT,
              "input 0 is f32(2, 4) on replica 0",
              "f32(8) on replica 1; inputs of replicas may differ in sizes only");
    ch_tuple_unref(in);
    ch_value_unref(v);
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static void null_lists_are_refused(void **state)
{
    ch_tuple    *tuple = NULL;
    ch_graph    *g = NULL;
    ch_strategy *st = NULL;
    ch_tensor   *t = t_noise(ch_shape_of(2), 1);

    t_refused(ch_tuple_of(1, NULL, &tuple), CH_INVALID_ARGUMENT, "list of", "1");
    t_refused(ch_tuple_new(1, NULL, NULL, &tuple), CH_INVALID_ARGUMENT, "list of", "1");
    t_refused(ch_graph_decode(NULL, 10, &g), CH_INVALID_ARGUMENT, "10 bytes", "NULL");
    t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 1}, &st),
              CH_INVALID_ARGUMENT, "the list of names is NULL", "");
    t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = -1}, &st),
              CH_INVALID_ARGUMENT, "-1 devices", "");
    t_refused(ch_tensor_copy(t, NULL), CH_INVALID_ARGUMENT, "the destination is NULL", "");
    assert_int_equal(ch_shape_make(3, NULL).rank, -1);
    ch_tensor_unref(t);
    (void)state;
}

/* ---- names in messages ---- */

static void fail_as(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_fail_as(s, CH_RESOURCE_EXHAUSTED, "only %d left", 3);
    ch_step_out(s, "x", ch_step_in(s, 0)); /* not a tail call: its line is known */
}

static void assign_input(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_var_assign(s, v, ch_step_in(s, 0)));
}

static void assign_integer(ch_step *s, void *v)
{
    ch_step_out(s, "x", ch_var_assign(s, v, ch_cast(ch_step_in(s, 0), CH_I32)));
}

static void add_bad_shape(ch_step *s, void *v)
{
    ch_step_out(s, "x",
                ch_var_assign_add(s, v, ch_reshape(ch_number(s, 1), ch_shape_of(1, 1, 1))));
}

static void scatter_scalar(ch_step *s, void *v)
{
    ch_node *id = ch_cast(ch_number(s, 0), CH_I32);

    ch_step_out(s, "x", ch_var_scatter_add(s, v, id, ch_number(s, 1)));
}

static void reduce_in_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)arg;
    out[0] = ch_merge_reduce(CH_SUM, in[0]);
}

static void gather_in_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    (void)arg;
    out[0] = ch_merge_gather(in[0], 7);
}

static ch_status host(void *arg, int n_in, ch_tensor *const *in, int n_out,
                      ch_tensor *const *out)
{
    (void)arg;
    (void)n_in;
    (void)in;
    (void)n_out;
    (void)out;
    return CH_OK;
}

static void call_in_merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)n;
    (void)arg;
    ch_host_call(s, &(ch_host_spec){.name = "save", .fn = host}, 0, NULL, NULL);
    out[0] = in[0];
}

static void merge(ch_step *s, void *fn)
{
    ch_node *x = ch_equal(ch_step_replica_id(s), ch_cast(ch_number(s, 0), CH_I32)), *y = NULL;

    ch_merge_call(s, *(ch_merge_fn *)fn, NULL, 1, &x, 1, &y);
    ch_step_out(s, "y", y);
}

static void step_error_names_the_call_the_variable_and_the_line(void **state)
{
    static ch_merge_fn reduces = reduce_in_merge, gathers = gather_in_merge,
                       calls = call_in_merge;
    static const struct {
        ch_step_fn  step;
        void       *arg; /* NULL: a variable "w" of f32(4) */
        ch_status   code;
        const char *word, *other;
    } row[] = {
        {fail_as, NULL, CH_RESOURCE_EXHAUSTED, "only 3 left", ""},
        {assign_input, NULL, CH_INVALID_ARGUMENT, "assign of w: the value is f32(rows)",
         "ch_function_static_rows"},
        {assign_integer, NULL, CH_INVALID_ARGUMENT, "assign of w: the value is i32(rows)",
         "ch_cast"},
        {add_bad_shape, NULL, CH_INVALID_ARGUMENT, "assign_add of w", "f32(1, 1, 4)"},
        {scatter_scalar, NULL, CH_INVALID_ARGUMENT, "scatter_add of w: the ids are", "rank"},
        {merge, &reduces, CH_INVALID_ARGUMENT, "merge_reduce", "bool"},
        {merge, &gathers, CH_INVALID_ARGUMENT, "merge_gather", "rank 0"},
        {merge, &calls, CH_FAILED_PRECONDITION, "host_call save: it must not",
         "each replica makes the call"},
    };
    ch_strategy *st = NULL;
    ch_tensor   *x = t_noise(ch_shape_of(4), 1);
    ch_tuple    *in = NULL;
    ch_var      *v = NULL;

    t_ok(ch_strategy_mirrored(NULL, &st));
    t_ok(ch_tuple_of(1, &x, &in));
    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = "w", .initial = x, .aggregation = CH_AGGREGATE_MEAN}, &v));
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_function *f = t_function(row[i].step, row[i].arg != NULL ? row[i].arg : v);

        t_refused(ch_strategy_run(st, f, in, NULL), row[i].code, row[i].word, row[i].other);
        if (strstr(ch_error_message(), "at test_misuse.c:") == NULL)
            fail_msg("%s", ch_error_message());
        ch_function_unref(f);
    }
    ch_tuple_unref(in);
    ch_tensor_unref(x);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static void call_host(ch_step *s, void *arg)
{
    (void)arg;
    ch_host_call(s, &(ch_host_spec){.name = "save", .fn = host}, 0, NULL, NULL);
    ch_step_out(s, "x", ch_number(s, 1));
}

/* A host call "save" with a mistake; or, without a mistake, differentiated. */
typedef struct host_mistake {
    ch_host_spec spec;
    int          n_in;
    bool         has_in, has_out; /* the lists are not NULL */
    const char  *word;
    ch_status    code;
} host_mistake;

static void call_host_wrongly(ch_step *s, void *arg)
{
    const host_mistake *m = arg;
    ch_host_spec        spec = m->spec;
    ch_node            *x = ch_number(s, 1), *out[CH_MAX_HOST_OUT + 1] = {NULL};
    ch_node            *in[CH_MAX_HOST_IN + 1] = {m->n_in > 1 ? NULL : x};

    spec.name = "save";
    ch_host_call(s, &spec, m->n_in, m->has_in ? in : NULL, m->has_out ? out : NULL);
    ch_step_out(s, "x", out[0] != NULL ? ch_gradient(out[0], x) : x);
}

static void graph_that_calls_the_host_is_refused_with_the_name_of_the_call(void **state)
{
    static const host_mistake row[] = {
        {{.fn = NULL},
         0,
         false,
         false,
         "host_call save: there is no function",
         CH_INVALID_ARGUMENT},
        {{.fn = host, .n_out = 99},
         0,
         false,
         true,
         "host_call save: 99 outputs",
         CH_INVALID_ARGUMENT},
        {{.fn = host},
         999,
         true,
         false,
         "host_call save: inputs: wrong number",
         CH_INVALID_ARGUMENT},
        {{.fn = host},
         2,
         false,
         false,
         "host_call save: the list of 2 inputs",
         CH_INVALID_ARGUMENT},
        {{.fn = host}, 2, true, false, "host_call save: input 0 is NULL", CH_INVALID_ARGUMENT},
        {{.fn = host, .n_out = 1},
         1,
         true,
         false,
         "host_call save: out is NULL",
         CH_INVALID_ARGUMENT},
        {{.fn = host, .n_out = 1, .out = {{.dtype = CH_STR}}},
         1,
         true,
         true,
         "host_call save(f64()): output 0 is string",
         CH_INVALID_ARGUMENT},
        {{.fn = host, .n_out = 1, .out = {{.dtype = CH_F32, .shape = {.rank = 99}}}},
         1,
         true,
         true,
         "host_call save(f64()): the result would have rank 99",
         CH_INVALID_ARGUMENT},
        {{.fn = host,
          .n_out = 1,
          .out = {{.dtype = CH_F32, .shape = {.rank = 1, .dim = {-1}}}}},
         1,
         true,
         true,
         "host_call save(f64()): axis 0 of the result would have -1 elements",
         CH_INVALID_ARGUMENT},
        {{.fn = host,
          .n_out = 1,
          .out = {{.dtype = CH_F32, .shape = {.rank = 1, .dim = {(int64_t)1 << 46}}}}},
         1,
         true,
         true,
         "host_call save(f64()): the result would have 2^48 bytes or more",
         CH_INVALID_ARGUMENT},
        {{.fn = host, .n_out = 1, .out = {{.dtype = CH_F32}}},
         1,
         true,
         true,
         "gradient: host_call save has no gradient",
         CH_UNIMPLEMENTED},
    };
    ch_function *f = t_function(call_host, NULL);
    size_t       n = 0;
    void        *bytes = NULL;

    t_ok(ch_strategy_run(NULL, f, NULL, NULL));
    t_refused(ch_graph_encode(ch_function_graph(f), &bytes, &n), CH_UNIMPLEMENTED,
              "host_call save", "at test_misuse.c:");
    ch_function_unref(f);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        host_mistake m = row[i];

        f = t_function(call_host_wrongly, &m);
        t_refused(ch_strategy_run(NULL, f, NULL, NULL), m.code, m.word, "at test_misuse.c:");
        ch_function_unref(f);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_recording_reports_every_mistake),
        cmocka_unit_test(a_node_of_another_functions_step_is_refused),
        cmocka_unit_test(a_value_with_too_many_components_is_refused),
        cmocka_unit_test(types_that_differ_between_replicas_are_named),
        cmocka_unit_test(null_lists_are_refused),
        cmocka_unit_test(step_error_names_the_call_the_variable_and_the_line),
        cmocka_unit_test(graph_that_calls_the_host_is_refused_with_the_name_of_the_call),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
