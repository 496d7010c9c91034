/* base/mutant.c -- the check that is left out.   SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"

#ifdef CH_MUTANTS
ch_mutant ch__mutant;
#endif
