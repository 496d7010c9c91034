/* test/save/test_strategies.c -- checkpoints under every strategy, and from each to each other.
 *
 * A training that is saved and continued by new objects gives the bits of a training that was
 * never interrupted. A checkpoint written under a strategy loads under any other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

/* The calls that continue_in makes in the scope of the strategy. */
enum { NO_SCOPE, SAVE_IN_SCOPE, RESTORE_IN_SCOPE };

static void continue_in(int scopes, int kind, const t_options *opt)
{
    static t_bits want, have;
    t_job         j;
    ch_restored  *r = NULL;

    t_begin(&j, kind, opt);
    t_steps(&j, 9);
    t_read_bits(&j, &want);
    t_end(&j);

    t_begin(&j, kind, opt);
    t_steps(&j, 4);
    if (scopes & SAVE_IN_SCOPE)
        t_ok(ch_strategy_enter(j.st));
    t_ok(ch_checkpoint_write(j.checkpoint, t_path("w"),
                             &(ch_write_options){.wait = true, .replace = true}));
    if (scopes & SAVE_IN_SCOPE)
        ch_strategy_leave();
    t_end(&j);

    t_begin(&j, kind, opt);
    if (scopes & RESTORE_IN_SCOPE)
        t_ok(ch_strategy_enter(j.st));
    t_ok(ch_checkpoint_restore(j.checkpoint, t_path("w"), NULL, &r));
    if (scopes & RESTORE_IN_SCOPE)
        ch_strategy_leave();
    t_steps(&j, 5);
    t_ok(ch_restored_assert_consumed(r));
    t_read_bits(&j, &have);
    ch_restored_unref(r);
    t_end(&j);
    t_same_bits(&have, &want);
}

static void continue_under(int kind, const t_options *opt)
{
    continue_in(NO_SCOPE, kind, opt);
}

/* Save and restore may be called inside or outside a scope. */
static void training_continues_after_calls_inside_and_outside_a_scope(void **state)
{
    static const int kind[] = {MIRRORED_2, SERVERS};

    for (int i = 0; i < 2; i++) {
        continue_in(SAVE_IN_SCOPE, kind[i], NULL);
        continue_in(RESTORE_IN_SCOPE, kind[i], &(t_options){.is_lazy = true});
        continue_in(SAVE_IN_SCOPE | RESTORE_IN_SCOPE, kind[i], NULL);
    }
    (void)state;
}

/* 3.7.1, 3.7.2, CK-6, PR-9: also when the variables are created after the restore */
static void training_continues_bit_for_bit(void **state)
{
    for (int kind = 0; kind < STRATEGIES; kind++) {
        continue_under(kind, NULL);
        continue_under(kind, &(t_options){.is_lazy = true});
        continue_under(kind, &(t_options){.is_half = true, .average = 0.9});
        continue_under(kind, &(t_options){.is_lazy = true, .is_half = true});
    }
    continue_under(DEFAULT, &(t_options){.accumulate = 3});
    continue_under(MIRRORED_2, &(t_options){.accumulate = 3, .is_lazy = true});
    (void)state;
}

/* 3.7.1, 3.7.7: a distributed variable is a single tensor, under the key of an ordinary one */
static void checkpoint_of_a_strategy_loads_under_each_other(void **state)
{
    static t_bits saved, have;

    for (int from = 0; from < STRATEGIES; from++)
        for (int to = 0; to < STRATEGIES; to++) {
            t_job        j;
            ch_restored *r = NULL;

            t_begin(&j, from, &(t_options){.is_half = from % 2 == 0});
            t_steps(&j, 3);
            t_read_bits(&j, &saved);
            t_ok(ch_checkpoint_write(j.checkpoint, t_path("x"),
                                     &(ch_write_options){.wait = true, .replace = true}));
            t_end(&j);

            t_begin(&j, to, &(t_options){.is_half = from % 2 == 0, .seed = 99});
            t_steps(&j, 1);
            t_ok(ch_checkpoint_restore(j.checkpoint, t_path("x"), NULL, &r));
            t_ok(ch_restored_assert_consumed(r));
            ch_restored_unref(r);
            t_read_bits(&j, &have);
            t_same_bits(&have, &saved);
            t_steps(&j, 1);
            t_end(&j);
        }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_continues_bit_for_bit),
        cmocka_unit_test(training_continues_after_calls_inside_and_outside_a_scope),
        cmocka_unit_test(checkpoint_of_a_strategy_loads_under_each_other),
    };

    if (t_four_gpus(NULL) != 0)
        return 1;
    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
