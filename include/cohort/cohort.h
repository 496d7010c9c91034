/* cohort/cohort.h -- includes every public header of the library.
 *
 * A program needs this header only:
 *
 *     #include <cohort/cohort.h>
 *
 * cohort/tensor.h has the rules of ownership and threads that hold for all headers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_COHORT_H
#define COHORT_COHORT_H

#include "cohort/callback.h"
#include "cohort/checkpoint.h"
#include "cohort/checkpoint_reader.h"
#include "cohort/cluster.h"
#include "cohort/coordinator.h"
#include "cohort/dataset.h"
#include "cohort/device.h"
#include "cohort/extended.h"
#include "cohort/file.h"
#include "cohort/fit.h"
#include "cohort/function.h"
#include "cohort/graph.h"
#include "cohort/history.h"
#include "cohort/init.h"
#include "cohort/input.h"
#include "cohort/iterator.h"
#include "cohort/layer.h"
#include "cohort/layout.h"
#include "cohort/local_cluster.h"
#include "cohort/log.h"
#include "cohort/logical.h"
#include "cohort/loss.h"
#include "cohort/metric.h"
#include "cohort/model.h"
#include "cohort/ops.h"
#include "cohort/optimizer.h"
#include "cohort/parameter_server.h"
#include "cohort/partitioner.h"
#include "cohort/replica.h"
#include "cohort/resolver.h"
#include "cohort/schedule.h"
#include "cohort/schema.h"
#include "cohort/shape.h"
#include "cohort/status.h"
#include "cohort/step.h"
#include "cohort/strategy.h"
#include "cohort/strategy_ops.h"
#include "cohort/table.h"
#include "cohort/tensor.h"
#include "cohort/tpu.h"
#include "cohort/value.h"
#include "cohort/var.h"

#endif
