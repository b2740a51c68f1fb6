import { PageHead } from '../components/basics';

export function NotFoundPage() {
  return (
    <>
      <PageHead title="No such page" />
      <p>
        The address leads nowhere. <a href="#/">Go to the overview.</a>
      </p>
    </>
  );
}
