/* ops/control.h -- the list of control-flow ops.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_CONTROL_H
#define OPS_CONTROL_H

#define CH_OPS_CONTROL(X) X(cond) X(scan)

#endif
