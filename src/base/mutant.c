/* base/mutant.c -- which check is left out.   SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"

#ifdef CH_MUTANTS
ch_mutant ch__mutant;
#endif
