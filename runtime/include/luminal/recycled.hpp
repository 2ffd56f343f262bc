// The memory of results: what a caller drops serves the next ones. In fresh memory, the first touch of its pages is a
// good part of the time of the step that writes a large result.
#pragma once

#include <pybind11/numpy.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
    Recycler() = default;
    Recycler(const Recycler&) = delete;
    Recycler& operator=(const Recycler&) = delete;
    ~Recycler() { limit(0); }

    /// An array of elements that may be anything.
    py::array array(const py::dtype& type, const std::vector<std::int64_t>& shape) {
        std::size_t bytes = static_cast<std::size_t>(type.itemsize());
        for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
        if (bytes < LARGE) return py::array(type, shape);
        auto lent = std::make_unique<Lent>(Lent{left_, left_->take(bytes)});
        const py::capsule owner(lent.get(), [](void* pointer) {
            const std::unique_ptr<Lent> done(static_cast<Lent*>(pointer));
            done->left->keep(std::move(done->block));
        });
        void* const memory = lent.release()->block.memory.get();
        return py::array(type, shape, memory, owner);
    }

    /// The memory of at most so many arrays, of those that were dropped last, is kept for others.
    void limit(std::size_t arrays) { left_->limit(arrays); }

  private:
    static constexpr std::size_t LARGE = std::size_t{1} << 20;  // below it, malloc keeps what is freed
    static constexpr std::size_t PAGE = std::size_t{2} << 20;   // a huge one

    struct Unmap {
        std::size_t bytes = 0;
        void operator()(void* memory) const { munmap(memory, bytes); }
    };

    /// A mapping of its own, which goes back to the system when it is freed.
    struct Block {
        std::unique_ptr<void, Unmap> memory;

        std::size_t bytes() const { return memory.get_deleter().bytes; }

        static Block fresh(std::size_t bytes) {
            void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
            madvise(memory, bytes, MADV_HUGEPAGE);  // a wish
#endif
            return {std::unique_ptr<void, Unmap>(memory, Unmap{bytes})};
        }
    };

    /// What has been dropped, the last first.
    class Left {
      public:
        Block take(std::size_t bytes) {
            const std::size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                const auto fits = [=](const Block& b) { return b.bytes() >= whole && b.bytes() / 2 <= whole; };
                const auto found = std::find_if(blocks_.begin(), blocks_.end(), fits);
                if (found != blocks_.end()) {
                    Block block = std::move(*found);
                    blocks_.erase(found);
                    return block;
                }
            }
            return Block::fresh(whole);
        }

        void keep(Block block) {
            const std::lock_guard<std::mutex> lock(mutex_);
            blocks_.push_front(std::move(block));
            if (blocks_.size() > most_) blocks_.pop_back();
        }

        void limit(std::size_t arrays) {
            const std::lock_guard<std::mutex> lock(mutex_);
            most_ = arrays;
            while (blocks_.size() > most_) blocks_.pop_back();
        }

      private:
        std::size_t most_ = 0;
        std::mutex mutex_;
        std::deque<Block> blocks_;
    };

    /// What an array's owner holds.
    struct Lent {
        std::shared_ptr<Left> left;
        Block block;
    };

    std::shared_ptr<Left> left_ = std::make_shared<Left>();
};

}  // namespace luminal_python
