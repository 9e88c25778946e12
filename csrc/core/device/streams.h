// The streams and events of a device.
#pragma once

#include "core/export.h"

namespace warptape {

// Work for one device in order; null is the device's default stream.
using StreamHandle = void*;
using EventHandle = void*;

class WT_API DeviceStreams {
 public:
  virtual ~DeviceStreams();

  virtual StreamHandle current_stream(int index) = 0;  // of the calling thread
  virtual void set_current_stream(int index, StreamHandle stream) = 0;
  virtual StreamHandle new_stream(int index, int priority) = 0;  // from a pool: never destroyed
  virtual bool stream_done(int index, StreamHandle stream) = 0;
  virtual void synchronize_stream(int index, StreamHandle stream) = 0;
  virtual EventHandle new_event(int index, bool timing, bool blocking) = 0;
  virtual void free_event(EventHandle event) noexcept = 0;
  virtual void record_event(EventHandle event, int index, StreamHandle stream) = 0;
  virtual void wait_event(int index, StreamHandle stream, EventHandle event) = 0;
  virtual bool event_done(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;
  virtual double elapsed_ms(EventHandle start, EventHandle end) = 0;
};

}  // namespace warptape
