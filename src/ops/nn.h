/* ops/nn.h -- the list of ops of this family.   SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_NN_H
#define OPS_NN_H

#define CH_OPS_NN(X)

#endif
