/* test/ops/test_all.c -- every op has a sample, and the op table is consistent.
 *
 * T_FAMILIES lists, as X(name), the families whose samples are built.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "ops/ops.h"
#include "sample.h"

#define T_FAMILY_ADDRESS(name) &name,
static const t_family *const families[] = {T_FAMILIES(T_FAMILY_ADDRESS) NULL};

/* Ops that a program binds instead of running, and ops that only passes create. */
static const char *const structural[] = {"input",        "read",         "constant", "fused",
                                         "matmul_fused", "conv2d_fused", NULL};

static bool is_structural(const char *name)
{
    for (int i = 0; structural[i] != NULL; i++)
        if (strcmp(structural[i], name) == 0)
            return true;
    return false;
}

static bool has_sample(const char *op)
{
    for (int i = 0; families[i] != NULL; i++)
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            if (strcmp(x->op, op) == 0)
                return true;
    return false;
}

/* Collective ops have no samples. Tests in test/strategy run them with replicas. */
static void every_op_has_a_sample(void **state)
{
    char missing[4096] = "";

    for (const ch_op *const *op = ch__op_table(); *op != NULL; op++) {
        size_t used = strlen(missing);

        if (!is_structural((*op)->name) && ((*op)->flags & CH_OP_COLLECTIVE) == 0 &&
            !has_sample((*op)->name))
            snprintf(missing + used, sizeof(missing) - used, " %s", (*op)->name);
    }
    if (missing[0] != '\0')
        fail_msg("no sample of:%s", missing);
    (void)state;
}

static void every_sample_is_of_an_op(void **state)
{
    for (int i = 0; families[i] != NULL; i++) {
        for (const t_sample *x = families[i]->samples; x->op != NULL; x++)
            if (ch__op_find(x->op, 1) == NULL)
                fail_msg("%s, sample \"%s\": there is no op %s", families[i]->name, x->name,
                         x->op);
        for (const t_refusal *x = families[i]->refusals; x->op != NULL; x++)
            if (ch__op_find(x->op, 1) == NULL)
                fail_msg("%s, refusal \"%s\": there is no op %s", families[i]->name, x->name,
                         x->op);
    }
    (void)state;
}

/* Checks that the fields of each op in the table are consistent. */
static void op_table_entries_are_consistent(void **state)
{
    for (const ch_op *const *op = ch__op_table(); *op != NULL; op++) {
        const ch_op *o = *op;

        if (ch__op_find(o->name, o->version) != o)
            fail_msg("%s: version %d is in the table twice", o->name, o->version);
        if (o->infer == NULL || (o->attrs != NULL) != (o->attrs_bytes > 0))
            fail_msg("%s: it has no shape rule, or rows without bytes", o->name);
        if (o->kernels == NULL ? !is_structural(o->name) : o->kernels[0] == NULL)
            fail_msg("%s: it has no kernel", o->name);
        if (o->grad != NULL && (o->flags & CH_OP_NO_GRAD) != 0)
            fail_msg("%s: it has a gradient, and says that it has none", o->name);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_sample),
        cmocka_unit_test(every_sample_is_of_an_op),
        cmocka_unit_test(op_table_entries_are_consistent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
