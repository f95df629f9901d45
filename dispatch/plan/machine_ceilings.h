/* machine.json as far as it is read again: the ceilings that `kttune probe` measured. The tuner
 * writes it (tuner/store/machine_file.h). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_MACHINE_CEILINGS_H
#define KT_DISPATCH_MACHINE_CEILINGS_H

#include "dispatch/topology/topology.h"

/* Where this machine's file lies ("<tables>/<class>/machine.json"); folders are made. */
kt_status kt_machine_path(const kt_fingerprint *machine, char *out, size_t out_bytes, kt_err *err);

/* Ceilings of an earlier probe of this machine. KT_E_NOT_FOUND when there is none; KT_E_MISMATCH
 * when the file was made on another machine. out is zeroed on error. */
kt_status kt_machine_load(const kt_topology *topology, kt_ceilings *out, kt_err *err);

#endif
