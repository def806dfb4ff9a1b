use millpond_core::driver::*;
use millpond_driver::sim::*;
#[test]
fn dbg() {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 20).schedule(Schedule::Seeded(5)));
        let flags=StreamFlags::BLOCKING;
        let block = device.mem_alloc(1024).unwrap();
        let event = device.event_create(EventFlags::default()).unwrap();
        for index in 0..300_000 {
            let stream = device.stream_create(flags).unwrap();
            if index > 0 {
                device.stream_wait_event(stream, event).unwrap();
            }
            device.lend(block, 1024, stream);
            device.launch(stream, &[Access::write(block, 1024, index)]);
            device.give_back(block, 1024, stream);
            device.event_record(event, stream).unwrap();
            // SAFETY: not used again.
            unsafe { device.stream_destroy(stream) }.unwrap();
        }
}
