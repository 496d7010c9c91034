/* test/job/test_var_ops.c -- the interface of variable storage (strategy/var.h): reads and
 * writes of regions, under every kind of strategy.
 *
 * Each variable is compared with a tensor that is changed in the same way.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"
#include "strategy/strategy.h"

enum { ROUNDS = 40 };

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Returns a random region: it may be empty, or the whole variable. */
static ch_region random_region(unsigned *seed, ch_shape shape)
{
    ch_region r = {.begin = {0}};

    for (int k = 0; k < shape.rank; k++) {
        r.begin[k] = draw(seed, (unsigned)shape.dim[k] + 1);
        r.size[k] = draw(seed, (unsigned)(shape.dim[k] - r.begin[k]) + 1);
        if (draw(seed, 4) == 0) {
            r.begin[k] = 0;
            r.size[k] = shape.dim[k];
        }
    }
    return r;
}

static ch_shape shape_of(const ch_region *r, int rank)
{
    ch_shape s = {.rank = rank};

    memcpy(s.dim, r->size, (size_t)rank * sizeof(s.dim[0]));
    return s;
}

/* Values are small whole numbers, so that a sum over copies is exact. */
static ch_tensor *random_value(unsigned *seed, ch_dtype dtype, ch_shape shape)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        ch__store(dtype, t->data + (size_t)i * ch_dtype_bytes(dtype), draw(seed, 100));
    return t;
}

static void check_region(ch_var *v, ch_tensor *model, const ch_region *r)
{
    ch_tensor *got = NULL, *view = NULL, *want = NULL;

    t_ok(v->strategy->var_ops->read(v, r, &got));
    t_ok(ch__tensor_region(model, r, &view));
    t_ok(ch_tensor_contiguous(view, &want));
    assert_true(ch_shape_equal(got->shape, want->shape));
    assert_memory_equal(got->data, want->data, ch_tensor_bytes(want));
    ch_tensor_unref(got);
    ch_tensor_unref(view);
    ch_tensor_unref(want);
}

/* Writes and reads random regions. */
static void check_var(ch_var *v, unsigned seed)
{
    ch_tensor *model = random_value(&seed, v->dtype, v->shape);

    t_ok(ch_var_set(v, model));
    for (int i = 0; i < ROUNDS; i++) {
        ch_region  r = random_region(&seed, v->shape);
        ch_tensor *value = random_value(&seed, v->dtype, shape_of(&r, v->shape.rank));
        ch_tensor *whole = NULL;

        t_ok(v->strategy->var_ops->write(v, &r, value));
        ch__region_write(model, &r, value);
        r = random_region(&seed, v->shape);
        check_region(v, model, &r);
        t_ok(ch_var_get(v, &whole));
        assert_memory_equal(whole->data, model->data, ch_tensor_bytes(model));
        ch_tensor_unref(whole);
        ch_tensor_unref(value);
    }
    ch_tensor_unref(model);
}

static void check_strategy(ch_strategy *st, ch_sync sync, ch_aggregation aggregation)
{
    const ch_shape shape[] = {ch_shape_of(7), ch_shape_of(5, 6), ch_shape_of(4, 3, 5),
                              ch_shape_of(6, 1), ch_shape_scalar()};
    const ch_dtype dtype[] = {CH_F32, CH_I64, CH_BF16, CH_U8, CH_F64};

    for (unsigned i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        ch_var_spec spec = {.name = "v",
                            .dtype = aggregation == CH_AGGREGATE_MEAN ? CH_F64 : dtype[i],
                            .shape = shape[i],
                            .sync = sync,
                            .aggregation = aggregation};
        ch_var     *v = NULL;

        t_ok(ch_var_new(st, &spec, &v));
        check_var(v, i + 1);
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
}

static void regions_of_local_variables_are_read_and_written(void **state)
{
    ch_strategy *st = NULL;

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &st));
    check_strategy(st, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
    t_ok(ch_strategy_mirrored(NULL, &st));
    check_strategy(st, CH_SYNC_AUTO, CH_AGGREGATE_NONE);
}

static void regions_of_variables_with_a_value_for_each_replica_are_aggregates(void **state)
{
    ch_strategy *st = NULL;

    (void)state;
    t_ok(ch_strategy_mirrored(NULL, &st));
    check_strategy(ch_strategy_ref(st), CH_SYNC_ON_READ, CH_AGGREGATE_SUM);
    check_strategy(ch_strategy_ref(st), CH_SYNC_ON_READ, CH_AGGREGATE_MEAN);
    check_strategy(st, CH_SYNC_ON_READ, CH_AGGREGATE_FIRST);
}

/* Shards along every axis, and more shards than servers. */
static void regions_of_variables_on_servers_are_read_and_written(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n += 2)
        for (int axis = 0; axis < 2; axis++) {
            ch_partitioner p = ch_partitioner_fixed(n);

            p.axis = -axis;
            check_strategy(t_cluster(&(ch_local_cluster_options){.ps = 3},
                                     &(ch_parameter_server_options){.partitioner = p}, NULL),
                           CH_SYNC_AUTO, CH_AGGREGATE_NONE);
        }
}

static void strings_in_a_region_are_written_on_servers_and_here(void **state)
{
    ch_strategy *st[2] = {
        t_cluster(&(ch_local_cluster_options){.ps = 2},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, NULL),
        NULL};

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &st[1]));
    for (int i = 0; i < 2; i++) {
        ch_region  r = {.begin = {1}, .size = {2}};
        ch_tensor *words = NULL, *got = NULL, *empty = NULL;
        ch_var    *v = NULL;

        t_ok(ch_tensor_new(CH_STR, ch_shape_of(4), &empty));
        t_ok(ch_var_new(st[i], &(ch_var_spec){.name = "v", .initial = empty}, &v));
        t_ok(ch_tensor_new(CH_STR, ch_shape_of(2), &words));
        t_ok(ch_tensor_set_str(words, (int64_t[]){0}, (ch_str){"one", 3}));
        t_ok(ch_tensor_set_str(words, (int64_t[]){1}, (ch_str){"two", 3}));
        t_ok(st[i]->var_ops->write(v, &r, words));
        t_ok(ch_var_get(v, &got));
        for (int64_t k = 0; k < 4; k++) {
            static const char *const want[] = {"", "one", "two", ""};
            ch_str                   s;

            t_ok(ch_tensor_str(got, &k, &s));
            assert_int_equal(s.size, strlen(want[k]));
            assert_memory_equal(s.data, want[k], s.size);
        }
        ch_tensor_unref(got);
        ch_tensor_unref(words);
        ch_tensor_unref(empty);
        ch_var_unref(v);
        ch_strategy_unref(st[i]);
    }
}

/* Only the servers that hold a part of the region are called: the other server is dead. */
static void region_of_one_shard_needs_its_server_alone(void **state)
{
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st = t_cluster(
             &(ch_local_cluster_options){.ps = 2},
             &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, &cluster);
    ch_region  r = {.begin = {1, 0}, .size = {1, 3}};
    ch_tensor *got = NULL;
    ch_var    *v = NULL;

    (void)state;
    t_ok(ch_var_new(
        st,
        &(ch_var_spec){.name = "v", .shape = ch_shape_of(4, 3), .init = ch_init_constant(7)},
        &v));
    t_ok(ch_local_cluster_kill(cluster, "ps", 1));
    t_ok(st->var_ops->read(v, &r, &got));
    assert_true(((const float *)ch_tensor_data(got))[2] == 7);
    ch_tensor_unref(got);
    ch_var_unref(v);
    ch_strategy_unref(st);
    ch_local_cluster_unref(cluster);
}

static int three_devices(void **state)
{
    (void)state;
    return ch_devices_configure(&(ch_devices_options){.spec = "CPU=3"}) == CH_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_of_local_variables_are_read_and_written),
        cmocka_unit_test(regions_of_variables_with_a_value_for_each_replica_are_aggregates),
        cmocka_unit_test(regions_of_variables_on_servers_are_read_and_written),
        cmocka_unit_test(strings_in_a_region_are_written_on_servers_and_here),
        cmocka_unit_test(region_of_one_shard_needs_its_server_alone),
    };

    return cmocka_run_group_tests(tests, three_devices, NULL);
}
