// Everything that a kernel may call.
#pragma once

#include "luminal/device/atomic.hpp"
#include "luminal/device/collective.hpp"
#include "luminal/device/copy_async.hpp"
#include "luminal/device/copy_box.hpp"
#include "luminal/device/dot.hpp"
#include "luminal/device/fragment.hpp"
#include "luminal/device/index.hpp"
#include "luminal/device/lanes.hpp"
#include "luminal/device/memory.hpp"
#include "luminal/device/regroup.hpp"
#include "luminal/device/slots.hpp"
#include "luminal/device/sort.hpp"
#include "luminal/device/tile.hpp"
