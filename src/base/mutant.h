/* base/mutant.h -- builds without one check, to see that a test notices.
 *
 *     if (CH_KEEPS(DEDUPE) && was_applied(...))
 *
 * CH_MUTANT is the check to leave out; in every build but those of `./dev sim --mutants` it is NONE, and this costs nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MUTANT_H
#define BASE_MUTANT_H

typedef enum ch_mutant {
    CH_MUTANT_NONE,
    CH_MUTANT_DEDUPE,   /* a server applies an update each time that it comes */
    CH_MUTANT_FENCE,    /* servers hear workers that were given up */
    CH_MUTANT_RETIRE,   /* servers hear steps that have ended */
    CH_MUTANT_RETRY,    /* a worker does not make a call again that was lost */
    CH_MUTANT_ORPHANS,  /* steps of a worker that was given up are not run again */
    CH_MUTANT_COMPARE,  /* nobody looks whether a worker has the steps that it was given */
    CH_MUTANT_LEASE,    /* a step that is run again reads other elements */
    CH_MUTANT_STALENESS,/* steps begin whatever runs */
    CH_MUTANT_QUIET,    /* an error is reported while cancelled steps run */
    CH_MUTANT_INCARNATION, /* a worker that was started again is taken for the one before */
    CH_MUTANT_END       /* how many there are, and one */
} ch_mutant;

#ifndef CH_MUTANT
#define CH_MUTANT NONE
#endif

#define CH_MUTANT_JOIN_(name)  CH_MUTANT_##name
#define CH_MUTANT_JOIN(name)   CH_MUTANT_JOIN_(name)
#define CH_KEEPS(check)        (CH_MUTANT_JOIN(CH_MUTANT) != CH_MUTANT_##check)

#endif
