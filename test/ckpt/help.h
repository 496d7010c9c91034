/* test/ckpt/help.h -- functions shared by the tests of checkpoint files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_CKPT_HELP_H
#define TEST_CKPT_HELP_H

#include "../file/help.h"
#include "bundle.h"

#endif
