/* base/mutant.h -- builds that can leave out one check, to see that a test notices.
 *
 *     if (CH_KEEPS(DEDUPE) && was_applied(...))
 *
 * Which one, `./dev sim --mutants` says in T_MUTANT, one after the other. In every other build CH_KEEPS is true and costs nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MUTANT_H
#define BASE_MUTANT_H

#define CH_MUTANTS_ALL(X)                                                                      \
    X(DEDUPE)      /* a server applies an update each time that it comes */                    \
    X(FENCE)       /* servers hear workers that were given up */                               \
    X(RETIRE)      /* servers hear steps that have ended */                                    \
    X(SNAPSHOT)    /* steps of a round read variables as they are */                           \
    X(ORPHANS)     /* steps of a worker that was given up are not run again */                 \
    X(COMPARE)     /* nobody looks whether a worker has the steps that it was given */         \
    X(LEASE)       /* a step that is run again reads another element */                        \
    X(STALENESS)   /* steps begin whatever runs */                                             \
    X(QUIET)       /* an error is reported while cancelled steps run */                        \
    X(DOUBT)       /* steps are cancelled though servers may have applied them */              \
    X(HOLD)        /* servers apply updates of steps that are being cancelled */               \
    X(INCARNATION) /* a worker that was started again is taken for the one before */

#define CH_MUTANT_NAME(name) CH_MUTANT_##name,
typedef enum ch_mutant {
    CH_MUTANT_NONE,
    CH_MUTANTS_ALL(CH_MUTANT_NAME) CH_MUTANT_END
} ch_mutant;
#undef CH_MUTANT_NAME

#ifdef CH_MUTANTS
extern ch_mutant ch__mutant; /* the check that is left out; a test sets it */
#define CH_KEEPS(check) (ch__mutant != CH_MUTANT_##check)
#else
#define CH_KEEPS(check) 1
#endif

#endif
