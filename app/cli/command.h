/* app/cli/command.h -- commands of the program `cohort`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

/* Exit codes. */
enum {
    CLI_OK = 0,
    CLI_BAD = 1,  /* an error, damage that was found, or checkpoints that differ */
    CLI_USAGE = 2 /* wrong arguments; of `diff` also an error, as diff(1) does */
};

/* Runs `cohort ckpt`; argv[0] is "ckpt". Returns the exit code. */
int cli_ckpt(int argc, char **argv);

#endif
