/* test/cluster/tpu_help.h -- helpers that make topologies and count warnings.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_CLUSTER_TPU_HELP_H
#define TEST_CLUSTER_TPU_HELP_H

#include "help.h"

static inline ch_tpu_topology *t_topology(const ch_tpu_mesh *mesh)
{
    ch_tpu_topology *t = NULL;

    t_ok(ch_tpu_topology_new(mesh, &t));
    return t;
}

/* Checks coordinates. */
static inline void t_is_at(const int *at, int x, int y, int z, int core)
{
    if (at[0] != x || at[1] != y || at[2] != z || at[3] != core)
        fail_msg("(%d, %d, %d, %d), want (%d, %d, %d, %d)", at[0], at[1], at[2], at[3], x, y, z,
                 core);
}

/* The warnings of the code "tpu" since t_count_warnings. */
static int  t_warnings;
static char t_warning[512]; /* the last */

static inline void t_see_warning(const ch_log_record *r, void *arg)
{
    (void)arg;
    if (r->level != CH_LOG_WARNING || strcmp(r->code, "tpu") != 0)
        return;
    t_warnings++;
    snprintf(t_warning, sizeof(t_warning), "%s", r->text);
}

static inline void t_count_warnings(void)
{
    t_warnings = 0;
    t_warning[0] = '\0';
    ch_log_set_sink(t_see_warning, NULL, CH_LOG_WARNING);
}

#endif
