/* test/mutant.h -- leaves out a check, in builds that can (base/mutant.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_MUTANT_H
#define TEST_MUTANT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"

/* Leaves out the check that environment variable T_MUTANT names. Returns false if it names none.
 * Exits with 99 if there is no such check, or if the build cannot leave it out. */
static inline bool t_leave_out_a_check(void)
{
    const char *name = getenv("T_MUTANT");

    if (name == NULL)
        return false;
#ifdef CH_MUTANTS
#define NAME_OF(check) #check,
    static const char *const all[] = {CH_MUTANTS_ALL(NAME_OF)};
#undef NAME_OF

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i], name) == 0)
            ch__mutant = (ch_mutant)(i + 1);
    if (ch__mutant != CH_MUTANT_NONE)
        return true;
#endif
    printf("there is no check %s in this build\n", name);
    exit(99);
}

#endif
