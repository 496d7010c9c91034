/* base/mutant.h -- builds that can leave out a single check, to prove that a test notices.
 *
 *     if (CH_KEEPS(DEDUPE) && was_applied(...))
 *
 * `./dev sim --mutants` builds with CH_MUTANTS and runs the simulated jobs once for each check
 * in the first list below, which it names in the environment variable T_MUTANT. Every run must
 * fail. `./dev crash --mutants` does the same with the crash tests and the second list, and
 * `./dev spmd --mutants` with random steps on logical devices and the third. The test that runs
 * every op on several cores must notice checks of rules and positions too. In all other builds
 * CH_KEEPS is 1 and costs nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MUTANT_H
#define BASE_MUTANT_H

/* The checks. Each comment is the behaviour without the check. ./dev reads the names. */
#define CH_MUTANTS_SIM(X)                                                                      \
    X(DEDUPE)      /* a server applies a repeated update again */                              \
    X(FENCE)       /* servers accept updates of lost workers */                                \
    X(RETIRE)      /* servers accept updates of steps that have ended */                       \
    X(SNAPSHOT)    /* steps of a round read the current values of variables */                 \
    X(ORDER)       /* updates of a round are applied in the order of their arrival */          \
    X(ORPHANS)     /* the steps of a lost worker are not repeated */                           \
    X(COMPARE)     /* steps that are missing in replies to pings are not repeated */           \
    X(LEASE)       /* a repeated step reads another element */                                 \
    X(RETURN)      /* the element of a cancelled step is not read again */                     \
    X(STALENESS)   /* steps begin regardless of the coordinator's mode */                      \
    X(QUIET)       /* an error is reported while cancelled steps still run */                  \
    X(DOUBT)       /* steps are cancelled although servers may have applied them */            \
    X(HOLD)        /* servers apply updates of steps that are being cancelled */               \
    X(INCARNATION) /* a restarted worker is mistaken for its previous incarnation */           \
    X(CUT)         /* a snapshot for a checkpoint is taken while steps run */

/* The checks of net/, which its own simulation must notice. */
#define CH_MUTANTS_NET(X)                                                                      \
    X(GENERATION) /* an ended connection is mistaken for the next one in its slot */           \
    X(LEFT)       /* calls of a caller whose connection has ended are not cancelled */         \
    X(ADDRESSEE)  /* a call to an earlier incarnation is handled by the next one */            \
    X(CREDIT)     /* calls are sent although the link has no room */

#define CH_MUTANTS_CRASH(X)                                                                    \
    X(FILESYNC)    /* a file is renamed before its bytes are durable */                        \
    X(FOLDERSYNC)  /* the rename of a saved file is not durable when the call returns */       \
    X(PARENTSYNC)  /* a new folder is not durable when the call returns */                     \
    X(DATASYNC)    /* a data file of a checkpoint is renamed before its bytes are durable */   \
    X(DATANAMES)   /* the index is renamed before the names of the data files are durable */   \
    X(INDEXSYNC)   /* the index is renamed before its bytes are durable */                     \
    X(INDEXNAME)   /* the index is not durable before the state file names it */               \
    X(SWEEPSYNC)   /* an old checkpoint loses its data before its index is durably gone */     \
    X(REPLACESYNC) /* the same for a checkpoint that is replaced */                            \
    X(COMMIT)      /* old checkpoints are removed before the new one is committed */           \
    X(BASE)        /* a full checkpoint is removed although a delta needs it */

#define CH_MUTANTS_SPMD(X)                                                                     \
    X(ARRIVE) /* a core reads the arrays of others before these have them */                   \
    X(LEAVE)  /* a core changes an array that others still read */                             \
    X(OFFSET) /* every core has the first part of an input, and writes the first of results */ \
    X(ORIGIN) /* the parts of a call draw the random numbers of the first part */              \
    X(EMPTY)  /* a core with nothing to reduce counts as one with a partial result */          \
    X(COMBINER) /* partial results of all kinds are added */                                   \
    X(INDEXMAP) /* windows and slices begin at the position of their factor */                 \
    X(SOURCE)   /* a core that computes nothing is listed with copies of the inputs */

#define CH_MUTANTS_ALL(X)                                                                      \
    CH_MUTANTS_SIM(X) CH_MUTANTS_NET(X) CH_MUTANTS_CRASH(X) CH_MUTANTS_SPMD(X)

#define CH_MUTANT_NAME(name) CH_MUTANT_##name,
typedef enum ch_mutant {
    CH_MUTANT_NONE,
    CH_MUTANTS_ALL(CH_MUTANT_NAME) CH_MUTANT_END
} ch_mutant;
#undef CH_MUTANT_NAME

#ifdef CH_MUTANTS
extern ch_mutant ch__mutant; /* the check that is left out; test/mutant.h sets it */
#define CH_KEEPS(check) (ch__mutant != CH_MUTANT_##check)
#else
#define CH_KEEPS(check) 1
#endif

#endif
