/* test/cluster/help.h -- helpers that create clusters and check the results of resolvers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_CLUSTER_HELP_H
#define TEST_CLUSTER_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cohort/cohort.h"

static inline void t_ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

/* Checks that the call failed with this code, and that its message contains these words. */
static inline void t_refused(ch_status rc, ch_status code, const char *words)
{
    if (rc != code)
        fail_msg("got %s (%s), want %s", ch_status_name(rc), ch_error_message(),
                 ch_status_name(code));
    if (strstr(ch_error_message(), words) == NULL)
        fail_msg("\"%s\" has not \"%s\"", ch_error_message(), words);
}

static inline ch_cluster *t_cluster(const char *text)
{
    ch_cluster *c = NULL;

    t_ok(ch_cluster_parse(text, &c));
    return c;
}

/* Checks the text that a cluster is printed as. */
static inline void t_prints(const ch_cluster *c, const char *text)
{
    char printed[2048];

    assert_int_equal(ch_cluster_print(c, printed, sizeof(printed)), strlen(text));
    assert_string_equal(printed, text);
}

/* Checks the text of the cluster that a resolver returns. */
static inline void t_gives(ch_resolver *r, const char *text)
{
    ch_cluster *c = NULL;

    t_ok(ch_resolver_cluster(r, &c));
    t_prints(c, text);
    ch_cluster_unref(c);
}

static inline void t_is_task(ch_resolver *r, const char *type, int id)
{
    char text[CH_JOB_BYTES];
    int  number = -7;

    t_ok(ch_resolver_task_type(r, text, sizeof(text)));
    t_ok(ch_resolver_task_id(r, &number));
    assert_string_equal(text, type);
    assert_int_equal(number, id);
}

static inline void t_has_layer(ch_resolver *r, const char *layer)
{
    char text[CH_RPC_LAYER_BYTES];

    t_ok(ch_resolver_rpc_layer(r, text, sizeof(text)));
    assert_string_equal(text, layer);
}

/* Checks the result of ch_resolver_master; NULL, -1 and NULL: arguments that are not given. */
static inline void t_master(ch_resolver *r, const char *type, int id, const char *layer,
                            const char *want)
{
    char text[CH_MASTER_BYTES];

    t_ok(ch_resolver_master(r, type, id, layer, text, sizeof(text)));
    assert_string_equal(text, want);
}

static inline ch_resolver *t_simple(const char *cluster, const ch_simple_options *opt)
{
    ch_cluster  *c = t_cluster(cluster);
    ch_resolver *r = NULL;

    t_ok(ch_resolver_simple(c, opt, &r));
    ch_cluster_unref(c);
    return r;
}

/* Removes all variables from the environment that describe a cluster. */
static inline int t_no_environment(void **state)
{
    static const char *const name[] = {"COHORT_CLUSTER",
                                       "COHORT_TASK",
                                       "TF_CONFIG",
                                       "RANK",
                                       "WORLD_SIZE",
                                       "MASTER_ADDR",
                                       "MASTER_PORT",
                                       "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE",
                                       "PMI_RANK",
                                       "PMI_SIZE",
                                       "SLURM_PROCID",
                                       "SLURM_STEP_NUM_TASKS",
                                       "SLURM_STEP_NODELIST",
                                       "SLURM_STEP_TASKS_PER_NODE",
                                       "SLURM_DISTRIBUTION",
                                       "CUDA_VISIBLE_DEVICES",
                                       "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
                                       "TPU_NAME",
                                       "TPU_CONFIG"};

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        unsetenv(name[i]);
    (void)state;
    return 0;
}

/* Lets each allocation fail in turn until the call succeeds, and checks that nothing leaks. The
 * call must release its results. */
static inline void t_out_of_memory(ch_status (*call)(void *arg), void *arg)
{
    int64_t   live = ch__mem_live();
    ch_status rc = CH_RESOURCE_EXHAUSTED;

    for (int64_t n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = call(arg);
        ch__mem_fail_at(0);
        if (rc != CH_OK && rc != CH_RESOURCE_EXHAUSTED && rc != CH_INVALID_ARGUMENT)
            fail_msg("allocation %d: %s: %s", (int)n, ch_status_name(rc), ch_error_message());
        assert_int_equal(ch__mem_live(), live);
        assert_true(n < 10000);
    }
}

#endif
