// What `#include "simt_api/asc_simt.h"` means where there is no NPU.
#pragma once
#include "../simt.h"
