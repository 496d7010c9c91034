/* test/collective/test_cross.c -- every implementation of the cross-replica sum gives the sum,
 * and the same bits on every replica.
 *
 * The tests run the implementations on threads with random arrays, for many sizes and numbers
 * of members, and through the options of a strategy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/thread.h"
#include "collective/collective.h"
#include "collective/group.h"
#include "help.h"
#include "strategy/strategy.h"
#include "tensor/tensor.h"

static const ch_cross_device ways[] = {CH_CROSS_SHARED, CH_CROSS_ONE_DEVICE,
                                       CH_CROSS_HIERARCHICAL, CH_CROSS_RING};
enum { WAYS = 4 };

static const ch_dtype dtypes[] = {CH_F32, CH_F64, CH_F16, CH_BF16,
                                  CH_I8,  CH_U8,  CH_I32, CH_I64};
enum { DTYPES = 8, ARRAYS = 4 };

/* The input of each of n members: `arrays` arrays, with numbers that depend on a seed. */
typedef struct job {
    ch_group   *group;
    ch_addends  sum;
    ch_addend   array[ARRAYS];
    int         n;
    bool        in_place;
    ch_tensor  *in[MOST][ARRAYS], *out[MOST][ARRAYS];
    const void *from[MOST][ARRAYS];
    void       *to[MOST][ARRAYS];
    ch_status   rc[MOST];
} job;

typedef struct member_arg {
    job *j;
    int  me;
} member_arg;

static void member_main(void *arg)
{
    member_arg *a = arg;
    job        *j = a->j;

    j->rc[a->me] = ch__group_all_reduce(j->group, a->me, &j->sum, j->from[a->me], j->to[a->me]);
}

static void run_members(job *j)
{
    ch_thread *t[MOST];
    member_arg a[MOST];

    for (int r = 0; r < j->n; r++) {
        a[r] = (member_arg){j, r};
        t_ok(ch__thread_start("member", member_main, &a[r], &t[r]));
    }
    for (int r = 0; r < j->n; r++)
        ch__thread_join(t[r]);
    for (int r = 0; r < j->n; r++)
        t_ok(j->rc[r]);
}

/* Whole numbers are added without rounding, in any order; `fine` numbers are rounded. */
static double number(int r, int k, int64_t i, bool fine)
{
    uint64_t x = (uint64_t)i * 2654435761u + (uint64_t)(r * 40503 + k * 977 + 1) * 0x9e3779b9u;

    x ^= x >> 15;
    return fine ? (double)(x % 20011) / 20011 - 0.5 : (double)(x % 15);
}

static void fill(job *j, bool fine)
{
    for (int r = 0; r < j->n; r++)
        for (int k = 0; k < j->sum.n; k++) {
            ch_shape shape = ch_shape_of(j->array[k].count);

            t_ok(ch_tensor_new(j->array[k].dtype, shape, &j->in[r][k]));
            for (int64_t i = 0; i < j->array[k].count; i++)
                ch__store(j->array[k].dtype,
                          (char *)ch_tensor_data_mut(j->in[r][k]) +
                              i * (int64_t)ch_dtype_bytes(j->array[k].dtype),
                          number(r, k, i, fine));
            if (j->in_place)
                j->out[r][k] = ch_tensor_ref(j->in[r][k]);
            else
                t_ok(ch_tensor_new(j->array[k].dtype, shape, &j->out[r][k]));
            j->from[r][k] = ch_tensor_data(j->in[r][k]);
            j->to[r][k] = ch_tensor_data_mut(j->out[r][k]);
        }
}

static void drop(job *j)
{
    for (int r = 0; r < j->n; r++)
        for (int k = 0; k < j->sum.n; k++) {
            ch_tensor_unref(j->in[r][k]);
            ch_tensor_unref(j->out[r][k]);
        }
    ch__group_free(j->group);
}

static job new_job(int n, ch_cross_device way, ch_reduce_op op, int arrays)
{
    job j = {.sum = {.op = op, .n = arrays}, .n = n};

    t_ok(ch__group_new(&(ch_group_options){.n = n, .cross = way}, &j.group));
    return j;
}

static void all_members_have_the_same_bits(const job *j)
{
    for (int k = 0; k < j->sum.n; k++)
        for (int r = 1; r < j->n; r++)
            if (memcmp(j->to[0][k], j->to[r][k],
                       (size_t)j->array[k].count * ch_dtype_bytes(j->array[k].dtype)) != 0)
                fail_msg("replicas 0 and %d have different bits of array %d", r, k);
}

static double value_at(const job *j, int k, int64_t i)
{
    return ch__load(j->array[k].dtype,
                    (const char *)j->to[0][k] + i * (int64_t)ch_dtype_bytes(j->array[k].dtype));
}

static void check_one(int n, ch_cross_device way, ch_dtype dtype, ch_reduce_op op,
                      int64_t count, bool in_place)
{
    job j = new_job(n, way, op, 1);

    j.array[0] = (ch_addend){dtype, count};
    j.sum.array = j.array;
    j.in_place = in_place;
    fill(&j, false);
    run_members(&j);
    all_members_have_the_same_bits(&j);
    for (int64_t i = 0; i < count; i++) {
        double want = 0;

        for (int r = 0; r < n; r++)
            want += number(r, 0, i, false);
        want /= op == CH_MEAN ? n : 1;
        if (dtype == CH_F32)
            want = (float)want;
        if (fabs(value_at(&j, 0, i) - want) >
            (op == CH_MEAN && ch__dtype_is_half(dtype) ? 0.01 * want : 0))
            fail_msg("%d replicas, way %d, %s, [%d] of %d: %g, want %g", n, (int)way,
                     ch_dtype_name(dtype), (int)i, (int)count, value_at(&j, 0, i), want);
    }
    drop(&j);
}

/* 4.6.1, 4.6.4, 4.6.7, 4.6.12, 8.10: also for odd numbers of members */
static void cross_reduce_gives_sum_and_mean_in_every_implementation(void **state)
{
    const int64_t count[] = {0, 1, 7, 3001};

    for (int n = 1; n <= MOST; n++)
        for (int w = 0; w < WAYS; w++)
            for (int d = 0; d < DTYPES; d++)
                for (int c = 0; c < 4; c++) {
                    check_one(n, ways[w], dtypes[d], CH_SUM, count[c], (n + c) % 2 == 0);
                    if (ch_dtype_is_float(dtypes[d]))
                        check_one(n, ways[w], dtypes[d], CH_MEAN, count[c], c % 2 == 0);
                }
    (void)state;
}

static void cross_reduce_sums_large_arrays_in_every_implementation(void **state)
{
    for (int w = 0; w < WAYS; w++) {
        check_one(2, ways[w], CH_F32, CH_SUM, 1000003, true);
        check_one(3, ways[w], CH_BF16, CH_SUM, 1000003, false);
        check_one(5, ways[w], CH_I64, CH_SUM, 1000003, true);
    }
    (void)state;
}

/* ---- bits ---- */

static void check_bits(int n, ch_cross_device way, ch_dtype dtype, int64_t count)
{
    job    j[2];
    double worst = 0;

    for (int k = 0; k < 2; k++) {
        j[k] = new_job(n, way, CH_SUM, 1);
        j[k].array[0] = (ch_addend){dtype, count};
        j[k].sum.array = j[k].array;
        j[k].in_place = k == 1;
        fill(&j[k], true);
        run_members(&j[k]);
        all_members_have_the_same_bits(&j[k]);
    }
    assert_memory_equal(j[0].to[0][0], j[1].to[0][0], (size_t)count * ch_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++) {
        double want = 0;

        for (int r = 0; r < n; r++)
            want += number(r, 0, i, true);
        worst = fmax(worst, fabs(value_at(&j[0], 0, i) - want));
    }
    assert_true(worst < (dtype == CH_F64 ? 1e-14 : dtype == CH_F32 ? 1e-6 : 0.1));
    drop(&j[0]);
    drop(&j[1]);
}

/* 4.7.6: the results of different implementations differ in the last digit at most; the results
 * of an implementation are the same in every run, in place or not. */
static void cross_reduce_has_the_same_bits_on_every_replica_and_in_every_run(void **state)
{
    const ch_dtype dtype[] = {CH_F32, CH_F64, CH_F16, CH_BF16};

    for (int n = 2; n <= MOST; n++)
        for (int w = 0; w < WAYS; w++)
            for (int d = 0; d < 4; d++)
                check_bits(n, ways[w], dtype[d], 2999);
    (void)state;
}

static const ch_addend mixed[ARRAYS] = {
    {CH_F32, 40001}, {CH_F64, 3}, {CH_F32, 0}, {CH_BF16, 7013}};

/* 4.7.6: the result of an array does not depend on the other arrays of the call or on the
 * packs. */
static void cross_reduce_has_the_same_bits_for_arrays_together_and_alone(void **state)
{
    for (int n = 2; n <= 5; n++)
        for (int w = 0; w < WAYS; w++) {
            job all = new_job(n, ways[w], CH_SUM, ARRAYS);

            memcpy(all.array, mixed, sizeof(mixed));
            all.sum.array = all.array;
            fill(&all, true);
            run_members(&all);
            all_members_have_the_same_bits(&all);
            for (int k = 0; k < ARRAYS; k++) {
                job one = new_job(n, ways[w], CH_SUM, ARRAYS);

                memcpy(one.array, mixed, sizeof(mixed));
                for (int i = 0; i < ARRAYS; i++)
                    one.array[i].count = i == k ? mixed[i].count : 0;
                one.sum.array = one.array;
                fill(&one, true);
                run_members(&one);
                assert_memory_equal(one.to[0][k], all.to[0][k],
                                    (size_t)mixed[k].count * ch_dtype_bytes(mixed[k].dtype));
                drop(&one);
            }
            drop(&all);
        }
    (void)state;
}

/* ---- in a strategy ---- */

static void add_inputs(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, ch_step_in(s, 0)));
    ch_step_out(s, NULL, ch_all_reduce(CH_MEAN, ch_step_in(s, 0)));
}

/* 4.6.12: 1, 2, 3, 4 and [1,2], [3,4], [5,6], [7,8] over 1, 2 and 4 replicas; by the option of
 * the strategy. */
static void strategy_option_selects_the_cross_reduce_implementation(void **state)
{
    for (int w = CH_CROSS_AUTO; w <= CH_CROSS_RING; w++)
        for (int n = 1; n <= 4; n *= 2)
            for (int width = 1; width <= 2; width++) {
                ch_strategy *st =
                    t_replicas_with(n, (ch_communication_options){.implementation = w});
                ch_tensor *t[4];
                double     sum[2] = {0}, mean[2];
                ch_value  *v;
                ch_tuple  *out;

                for (int r = 0; r < n; r++) {
                    t[r] = t_count(CH_F32, ch_shape_of(width), 1 + r * width);
                    for (int i = 0; i < width; i++)
                        sum[i] += 1 + r * width + i;
                }
                for (int i = 0; i < width; i++)
                    mean[i] = sum[i] / n;
                v = t_each(n, t);
                out = t_run(st, add_inputs, NULL, t_values(1, &v));
                t_all_have(out, 0, ch_shape_of(width), sum);
                t_all_have(out, 1, ch_shape_of(width), mean);
                ch_tuple_unref(out);
                ch_strategy_unref(st);
            }
    (void)state;
}

/* 4.7.1 */
static void communication_options_reject_invalid_values(void **state)
{
    const ch_communication_options wrong[] = {{.bytes_per_pack = -1},
                                              {.timeout_seconds = -1},
                                              {.timeout_seconds = NAN},
                                              {.implementation = CH_CROSS_RING + 1}};
    const char *const word[] = {"bytes_per_pack", "timeout_seconds", "timeout_seconds",
                                "implementation"};

    for (int i = 0; i < 4; i++) {
        ch_strategy *st = NULL;

        t_refused(ch_strategy_mirrored(&(ch_mirrored_options){.communication = wrong[i]}, &st),
                  CH_INVALID_ARGUMENT, word[i], "Mirrored");
    }
    (void)state;
}

/* 4.7.2, 4.7.3 */
static void communication_merge_prefers_options_of_the_call(void **state)
{
    const ch_communication_options base = {CH_CROSS_RING, 100, 5}, over = {.bytes_per_pack = 7};
    ch_communication_options       c = ch_communication_merge(&base, &over);

    assert_true(c.implementation == CH_CROSS_RING && c.bytes_per_pack == 7 &&
                c.timeout_seconds == 5);
    c = ch_communication_merge(&over, &base);
    assert_true(c.implementation == CH_CROSS_RING && c.bytes_per_pack == 100);
    c = ch_communication_merge(NULL, NULL);
    assert_true(c.implementation == CH_CROSS_AUTO && c.bytes_per_pack == 0);
    assert_true(base.bytes_per_pack == 100);
    (void)state;
}

/* Reduces arrays of 4, 800, 32 and 128 bytes, which are packed from the last to the first. */
static void pack_four(ch_step *s, void *arg)
{
    static const int size[] = {1, 200, 8, 32};
    ch_node         *x[4], *sum[4];

    for (int i = 0; i < 4; i++)
        x[i] = ch_add(ch_fill(s, CH_F32, ch_shape_of(size[i]), i),
                      ch_cast(ch_step_replica_id(s), CH_F32));
    ch_all_reduce_all_with(CH_SUM, 4, x,
                           &(ch_communication_options){.bytes_per_pack = *(const int64_t *)arg},
                           sum);
    for (int i = 0; i < 4; i++)
        ch_step_out(s, NULL, sum[i]);
}

/* 4.6.5, 4.7.4: a pack is closed when it exceeds bytes_per_pack; the sums do not depend on the
 * packs. */
static void all_reduce_packs_arrays_by_bytes_per_pack(void **state)
{
    static const struct {
        int64_t bytes;
        int     packs;
    } row[] = {{0, 1}, {1, 4}, {200, 2}, {100000, 1}};
    ch_strategy *st = t_replicas(2);

    for (int i = 0; i < 4; i++) {
        int64_t      bytes = row[i].bytes, before = ch__group_barriers(st->group);
        ch_function *f = t_function(pack_four, &bytes);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st, f, NULL, &out));
        assert_int_equal(ch__group_barriers(st->group) - before, row[i].packs);
        for (int k = 0; k < 4; k++)
            assert_true(t_floats(out, k, 1)[0] == (float)(2 * k + 1));
        ch_tuple_unref(out);
        ch_function_unref(f);
    }
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_reduce_gives_sum_and_mean_in_every_implementation),
        cmocka_unit_test(cross_reduce_sums_large_arrays_in_every_implementation),
        cmocka_unit_test(cross_reduce_has_the_same_bits_on_every_replica_and_in_every_run),
        cmocka_unit_test(cross_reduce_has_the_same_bits_for_arrays_together_and_alone),
        cmocka_unit_test(strategy_option_selects_the_cross_reduce_implementation),
        cmocka_unit_test(communication_options_reject_invalid_values),
        cmocka_unit_test(communication_merge_prefers_options_of_the_call),
        cmocka_unit_test(all_reduce_packs_arrays_by_bytes_per_pack),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
