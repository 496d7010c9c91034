/* test/job/test_server_memory.c -- parameter servers whose memory is exhausted for a moment.
 *
 * ch__server_state_fence and ch__server_state_snapshot are wrapped by the linker, so that the
 * next calls of them fail. The jobs run in the simulator: if a job waited for ever, it would
 * end with an error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "job/server/state.h"
#include "scene.h"
#include "strategy/strategy.h"

static int n_failing_fences, n_failing_snapshots; /* calls that will fail */

/* NOLINTBEGIN(bugprone-reserved-identifier): names that the linker gives */
ch_status __real_ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m);
ch_status __wrap_ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m);
ch_status __real_ch__server_state_snapshot(ch_server_state *s, const Cohort__PsSnapshot *m);
ch_status __wrap_ch__server_state_snapshot(ch_server_state *s, const Cohort__PsSnapshot *m);

ch_status __wrap_ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m)
{
    if (n_failing_fences > 0) {
        n_failing_fences--;
        return ch__fail_memory("a fence");
    }
    return __real_ch__server_state_fence(s, m);
}

ch_status __wrap_ch__server_state_snapshot(ch_server_state *s, const Cohort__PsSnapshot *m)
{
    if (n_failing_snapshots > 0 && !m->release) {
        n_failing_snapshots--;
        return ch__fail_memory("a snapshot");
    }
    return __real_ch__server_state_snapshot(s, m);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static const ch_local_cluster_options three_workers = {.ps = 2, .workers = 3};

static void lost_worker_is_fenced_again_when_a_server_had_no_memory(void **state)
{
    scene s;

    (void)state;
    for (int n = 1; n <= 4; n++) {
        t_open(&s, &three_workers, 10, NULL);
        n_failing_fences = n;
        t_schedule(&s, 30);
        t_kill_in(&s, 20, "worker", 1);
        t_ok(ch_coordinator_join(s.co));
        t_pass(&s, 200);
        assert_int_equal(n_failing_fences, 0);
        assert_true(t_value_of(s.n) == 30);
        assert_int_equal(t_stats(&s).finished, 30);
        t_close(&s);
    }
}

/* Returns the value that the step has read, and adds 1. */
static void read_and_count(ch_step *step, void *arg)
{
    const scene *s = arg;

    ch_step_out(step, "n", ch_add(ch_var_read(step, s->n), ch_number(step, 0)));
    ch_var_assign_add(step, s->n, ch_number(step, 1));
}

/* A round of CH_SYNCHRONOUS: each of its steps reads the value from before the round. */
static void round_begins_again_when_a_server_had_no_memory_for_its_snapshot(void **state)
{
    scene        s;
    ch_remote   *remote[6] = {NULL};
    ch_function *f;

    (void)state;
    t_open(&s, &three_workers, 10,
           &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = 3});
    f = t_function(read_and_count, &s);
    n_failing_snapshots = 3;
    for (int i = 0; i < 6; i++)
        t_ok(ch_coordinator_schedule(s.co, f, NULL, &remote[i]));
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(n_failing_snapshots, 0);
    assert_true(t_value_of(s.n) == 6);
    for (int i = 0; i < 6; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(remote[i], &out));
        assert_true(*t_floats(out, 0, 0) == (float)(i / 3 * 3));
        ch_tuple_unref(out);
        ch_remote_unref(remote[i]);
    }
    ch_function_unref(f);
    t_close(&s);
}

static void snapshot_is_an_error_and_is_released_when_a_server_had_no_memory(void **state)
{
    scene    s;
    uint64_t snapshot = 0;

    (void)state;
    t_open(&s, &three_workers, 10, NULL);
    for (int i = 0; i < 100; i++) { /* more than may exist at the same time */
        n_failing_snapshots = 1;
        t_refused(s.st->exec->snapshot(s.st, &snapshot), CH_RESOURCE_EXHAUSTED, "snapshot",
                  "out of memory");
    }
    t_ok(s.st->exec->snapshot(s.st, &snapshot));
    s.st->exec->release(s.st, snapshot);
    t_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_worker_is_fenced_again_when_a_server_had_no_memory),
        cmocka_unit_test(round_begins_again_when_a_server_had_no_memory_for_its_snapshot),
        cmocka_unit_test(snapshot_is_an_error_and_is_released_when_a_server_had_no_memory),
    };

    return cmocka_run_group_tests_name("server_memory", tests, NULL, NULL);
}
