// The memory of results: what a caller drops serves the next ones. In fresh memory, the first touch of its pages is a
// good part of the time of the step that writes a large result.
#pragma once

#include <pybind11/numpy.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace luminal_python {

namespace py = pybind11;

/// Makes numpy's arrays, large ones of memory that arrays made before have left. Arrays may outlive it.
class Recycler {
  public:
    /// An array of elements that may be anything.
    py::array array(const py::dtype& type, const std::vector<std::int64_t>& shape) const {
        std::size_t bytes = static_cast<std::size_t>(type.itemsize());
        for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
        if (bytes < LARGE) return py::array(type, shape);
        auto lent = std::make_unique<Lent>(Lent{left_, left_->take(bytes)});
        void* const memory = lent->block.memory.get();
        const py::capsule owner(lent.release(), [](void* pointer) {
            const std::unique_ptr<Lent> done(static_cast<Lent*>(pointer));
            done->left->keep(std::move(done->block));
        });
        return py::array(type, shape, memory, owner);
    }

    /// At most so many arrays' memory is kept for others, what was dropped last.
    void keep(std::size_t arrays) const { left_->most = arrays; }

  private:
    static constexpr std::size_t LARGE = std::size_t{1} << 20;  // below it, malloc keeps what is freed
    static constexpr std::size_t PAGE = std::size_t{2} << 20;   // a huge one

    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };

    struct Block {
        std::unique_ptr<void, Free> memory;
        std::size_t bytes;
    };

    /// What has been dropped.
    struct Left {
        std::size_t most = 1;
        std::mutex mutex;
        std::deque<Block> blocks;

        Block take(std::size_t bytes) {
            const std::size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
            {
                const std::lock_guard<std::mutex> lock(mutex);
                const auto fits = [=](const Block& b) { return b.bytes >= whole && b.bytes / 2 <= whole; };
                const auto found = std::find_if(blocks.begin(), blocks.end(), fits);
                if (found != blocks.end()) {
                    Block block = std::move(*found);
                    blocks.erase(found);
                    return block;
                }
            }
            Block block{std::unique_ptr<void, Free>(std::aligned_alloc(PAGE, whole)), whole};
            if (!block.memory) throw std::bad_alloc();
            madvise(block.memory.get(), whole, MADV_HUGEPAGE);  // a wish
            return block;
        }

        void keep(Block block) {
            const std::lock_guard<std::mutex> lock(mutex);
            blocks.push_front(std::move(block));
            if (blocks.size() > most) blocks.pop_back();
        }
    };

    /// What an array's owner holds.
    struct Lent {
        std::shared_ptr<Left> left;
        Block block;
    };

    std::shared_ptr<Left> left_ = std::make_shared<Left>();
};

}  // namespace luminal_python
