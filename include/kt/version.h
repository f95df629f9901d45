/* Version of the project.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_VERSION_H
#define KT_VERSION_H

#define KT_VERSION "0.1.0"

#endif
