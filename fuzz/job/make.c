/* fuzz/job/make.c -- the objects of a job, as bytes.   SPDX-License-Identifier: Apache-2.0 */
#include "job/make.h"

#include "graph/function.h"
#include "job/step_plan.h"

enum { MOST_SHARDS = 3 };

static ch_var *variable[VARIABLES];

void must(ch_status rc)
{
    MUST(rc == CH_OK);
}

ch_tensor *make_tensor(ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    must(ch_tensor_new(dtype, shape, &t));
    return t;
}

ch_tensor *make_bytes(const blob *b)
{
    ch_tensor *t = NULL;

    must(ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)b->size), b->data, &t));
    return t;
}

ch_var *const *make_variables(void)
{
    static const char *const name[VARIABLES] = {"v", "table", "n"};
    const ch_shape shape[VARIABLES] = {ch_shape_of(3), ch_shape_of(4, 3), ch_shape_scalar()};

    for (int i = 0; i < VARIABLES && variable[i] == NULL; i++)
        must(
            ch_var_new(NULL, &(ch_var_spec){.name = name[i], .shape = shape[i]}, &variable[i]));
    return variable;
}

/* ---- steps ---- */

static void add(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "is", ch_var_assign_add(s, variable[0], ch_step_in(s, 0)));
}

static void scatter(ch_step *s, void *arg)
{
    (void)arg;
    ch_var_scatter_add(s, variable[1], ch_step_in(s, 0), ch_step_in(s, 1));
}

static void train(ch_step *s, void *arg)
{
    ch_node *w = ch_var_read(s, variable[0]), *x = ch_mul(ch_step_in(s, 0), ch_step_in(s, 1));

    (void)arg;
    ch_var_assign_sub(s, variable[0], ch_mul(w, ch_add(x, ch_step_in(s, 2))));
    ch_step_out(s, "n", ch_var_assign_add(s, variable[2], ch_number(s, 1)));
}

static void look_up(ch_step *s, void *arg)
{
    ch_node *rows = ch_gather(ch_var_read(s, variable[1]), ch_step_in(s, 0), 0);

    (void)arg;
    ch_var_scatter_add(s, variable[1], ch_step_in(s, 0), ch_mul(rows, ch_number(s, 2)));
    ch_step_out(s, "rows", rows);
}

/* Records a step and makes its step plan. Unrefs the inputs. */
static ch_step_plan *plan_of(ch_step_fn step, int n, ch_tensor **in, ch_function **f)
{
    static const int place[VARIABLES] = {0, 1, 2}, axis[VARIABLES] = {-1, -1, -1};
    ch_tuple        *tuple = NULL;
    ch_step_plan    *r = NULL;

    make_variables();
    must(ch_function_new("step", step, NULL, f));
    ch_function_static_rows(*f);
    must(ch_tuple_of(n, in, &tuple));
    must(ch_strategy_run(NULL, *f, tuple, NULL));
    must(ch__step_plan_new(ch_function_graph(*f), place, axis, &r));
    ch_tuple_unref(tuple);
    for (int i = 0; i < n; i++)
        ch_tensor_unref(in[i]);
    return r;
}

/* ---- as bytes ---- */

blob make_graph(int i)
{
    ch_tensor *in[] = {i == 0 ? make_tensor(CH_F32, ch_shape_of(3))
                              : make_tensor(CH_I64, ch_shape_of(2)),
                       i == 0 ? NULL : make_tensor(CH_F32, ch_shape_of(2, 3))};
    ch_function  *f = NULL;
    ch_step_plan *r = i == 0 ? plan_of(add, 1, in, &f) : plan_of(scatter, 2, in, &f);
    blob          b = {0};

    for (int k = 0; k < r->n_remote_parts; k++)
        if (b.data == NULL && r->remote[k].kind == CH_REMOTE_UPDATE)
            must(ch_graph_encode(r->remote[k].graph, &b.data, &b.size));
    ch__step_plan_free(r);
    ch_function_unref(f);
    return b;
}

static uint64_t number_of(const ch_resource *r)
{
    uint64_t i = 0;

    while (variable[i] != r->key)
        i++;
    return i + 1;
}

static ch_step_plan *plan_of_train(ch_function **f)
{
    ch_tensor *in[3];

    for (int i = 0; i < 3; i++)
        in[i] = make_tensor(CH_F32, ch_shape_of(3));
    return plan_of(train, 3, in, f);
}

static ch_step_plan *plan_of_look_up(ch_function **f)
{
    ch_tensor *ids = make_tensor(CH_I64, ch_shape_of(2));

    return plan_of(look_up, 1, &ids, f);
}

blob make_plan(int i, int n_shards)
{
    ch_function         *f = NULL;
    ch_step_plan        *r = i == 0 ? plan_of_train(&f) : plan_of_look_up(&f);
    const ch_graph      *g = ch_function_graph(f);
    ch_plan_variable     v[VARIABLES];
    struct ch_plan_shard where[VARIABLES][MOST_SHARDS];
    uint64_t             function[16];
    blob                 b = {0};

    MUST(n_shards <= MOST_SHARDS && r->n_remote_parts <= 16);
    for (int k = 0; k < g->n_resources; k++) {
        const ch_resource *of = &g->resource[k];

        for (int s = 0; s < n_shards; s++)
            where[k][s] = (struct ch_plan_shard){s, number_of(of)};
        v[k] = (ch_plan_variable){.name = of->name,
                                  .dtype = of->dtype,
                                  .shape = of->shape,
                                  .n_shards = of->shape.rank > 0 ? n_shards : 1,
                                  .shard = where[k]};
    }
    for (uint64_t k = 0; k < 16; k++)
        function[k] = k * MOST_SHARDS + 4;
    must(ch__step_plan_encode(&(ch_placed_plan){r, g->n_resources, v, function}, &b.data,
                              &b.size));
    ch__step_plan_free(r);
    ch_function_unref(f);
    return b;
}

blob make_stream(int i)
{
    ch_tensor         *t[] = {make_tensor(CH_F32, ch_shape_of(2, 3)),
                              make_tensor(CH_F32, ch_shape_of(2, 3))};
    const char *const  name[] = {"x", "y"};
    ch_dataset        *d = ch_dataset_slices(1 + i, t, name);
    ch_dataset_options no_threads = {.threads = CH_OFF};
    blob               b = {0};

    d = ch_dataset_with_options(d, &no_threads);
    must(ch_dataset_encode(d, &b.data, &b.size));
    ch_dataset_unref(d);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return b;
}
